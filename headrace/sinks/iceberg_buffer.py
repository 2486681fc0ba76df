"""Rows of the current epoch on their way into data files, written in a thread of their own."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import polars as pl

from catalog.catalogs import Catalogs, TableName
from catalog.commit import check_identity
from catalog.fitting import cast, fit
from catalog.staging import DataFileWriter, remove
from catalog.write_properties import check_writable
from headrace.kernel.errors import HeadraceError, SchemaError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


class EpochBuffer:
    """Collects frames, and writes them to data files once they hold ``buffer_bytes``.

    At most two buffers are in memory: the one being written and the one being filled. The table is read anew once per
    epoch, so that a change of its schema is seen before rows are written under the old one.

    Args:
        catalogs: Where the table is loaded from.
        name: The table.
        table: The table as it was opened; its identity is kept.
        schema: The frames' column types.
        label: Goes into file names.
        target_file_size: Size of a full file in bytes; None: what the table's properties say.
        buffer_bytes: Size in memory at which rows are written.
    """

    def __init__(
        self,
        catalogs: Catalogs,
        name: TableName,
        table: Table,
        schema: pl.Schema,
        label: str,
        target_file_size: int | None,
        buffer_bytes: int,
    ) -> None:
        self._catalogs = catalogs
        self._name = name
        self._uuid = str(table.metadata.table_uuid)
        self._schema = schema
        self._buffer_bytes = buffer_bytes
        self._writer = DataFileWriter(table, label, target_file_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"iceberg-{name.table}")
        self._frames: list[pl.DataFrame] = []
        self._held = 0.0
        self._running: Future[list[DataFile]] | None = None
        self._files: list[DataFile] = []
        self._fresh = False

    @property
    def table(self) -> Table:
        """The table as it was read last."""
        return self._writer.table

    def add(self, frame: pl.DataFrame) -> None:
        """Take rows; may wait for the buffer before to be written.

        Raises:
            SchemaError: The frame does not have the columns and types that the sink was opened for.
            HeadraceError: An earlier buffer could not be written.
        """
        if frame.schema != self._schema:
            raise SchemaError(
                f"rows for table {self._name} do not have the schema that the sink was opened for",
                detail=f"opened for {dict(self._schema)}, got {dict(frame.schema)}",
            )
        if frame.is_empty():
            return
        self._frames.append(frame)
        self._held += frame.estimated_size()
        if self._held >= self._buffer_bytes:
            self._start()

    def finish(self) -> list[DataFile]:
        """Write what is left, and give all data files of the epoch; the next epoch begins.

        Raises:
            HeadraceError: Something could not be written, or the rows no longer fit the table.
        """
        self._start()
        self._join()
        files, self._files, self._fresh = self._files, [], False
        return files

    def clear(self) -> None:
        """Forget the epoch's rows, and remove its files as far as that works."""
        self._frames, self._held = [], 0.0
        with suppress(HeadraceError):
            self._join()
        files, self._files, self._fresh = self._files, [], False
        remove(self.table.io, [data_file.file_path for data_file in files])

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        self._join()
        if self._frames:
            frames, self._frames, self._held = self._frames, [], 0.0
            self._running = self._thread.submit(self._write, frames)

    def _join(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._files += running.result()

    def _write(self, frames: list[pl.DataFrame]) -> list[DataFile]:
        if not self._fresh:
            self._writer.table = check_writable(self._catalogs.load(self._name), self._name)
            check_identity(self.table, self._name, self._uuid)
            self._fresh = True
        how = fit(self._schema, self.table.schema(), str(self._name))
        rows = pl.concat(frames, how="vertical")
        return self._writer.write(cast(rows, how, str(self._name)))
