import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** A remote tier (KIP-405) for tests: a folder for each segment. */
public final class FolderStorage implements RemoteStorageManager {
    private Path root;

    @Override
    public void configure(Map<String, ?> configs) {
        root = Path.of(configs.get("folder").toString());
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
            throws RemoteStorageException {
        Path folder = folder(segment);
        try {
            Files.createDirectories(folder);
            Files.copy(data.logSegment(), folder.resolve("log"));
            Files.copy(data.offsetIndex(), folder.resolve(IndexType.OFFSET.name()));
            Files.copy(data.timeIndex(), folder.resolve(IndexType.TIMESTAMP.name()));
            Files.copy(data.producerSnapshotIndex(), folder.resolve(IndexType.PRODUCER_SNAPSHOT.name()));
            if (data.transactionIndex().isPresent()) {
                Files.copy(data.transactionIndex().get(), folder.resolve(IndexType.TRANSACTION.name()));
            }
            byte[] epochs = new byte[data.leaderEpochIndex().remaining()];
            data.leaderEpochIndex().duplicate().get(epochs);
            Files.write(folder.resolve(IndexType.LEADER_EPOCH.name()), epochs);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
        return Optional.empty();
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE - 1);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
            throws RemoteStorageException {
        byte[] whole = read(segment, "log");
        int stop = Math.min(whole.length, end + 1);
        return new ByteArrayInputStream(whole, start, stop - start);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType index) throws RemoteStorageException {
        return new ByteArrayInputStream(read(segment, index.name()));
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        Path folder = folder(segment);
        if (!Files.exists(folder)) {
            return;
        }
        try (var found = Files.walk(folder)) {
            List<Path> paths = found.sorted(Comparator.reverseOrder()).toList();
            for (Path path : paths) {
                Files.delete(path);
            }
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public void close() {}

    private Path folder(RemoteLogSegmentMetadata segment) {
        return root.resolve(segment.remoteLogSegmentId().id().toString());
    }

    private byte[] read(RemoteLogSegmentMetadata segment, String name) throws RemoteStorageException {
        try {
            return Files.readAllBytes(folder(segment).resolve(name));
        } catch (NoSuchFileException error) {
            throw new RemoteResourceNotFoundException(error);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }
}
