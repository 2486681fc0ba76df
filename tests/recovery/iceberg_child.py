"""A tiny job with one Iceberg sink, run as a process so that it can be killed and stopped (see test_iceberg_kill.py).

Epoch n writes the rows 100 n .. 100 n + 99. The "head" is a file that is replaced atomically before the sink commits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from catalog.catalogs import Catalogs, TableName
from catalog.iceberg_internals import Commit
from tests.lake import Lake, covers, epoch, rows

EPOCHS = 5


def main(folder: Path, options: dict[str, str], table: str, stop_in_send: bool) -> None:
    lake = Lake(Catalogs({"lake": options}), TableName.parse(table))
    head = folder / "head.json"
    record = json.loads(head.read_text()) if head.exists() else None
    writer = lake.writer()
    writer.recover(record)
    if stop_in_send:
        stop_before_sending()
    for number in range(record["epoch"] + 1 if record else 1, EPOCHS + 1):
        writer.write(rows(*range(100 * number, 100 * number + 100)))
        pre_commit = writer.prepare(epoch(number, attempt=str(os.getpid())), covers(number))
        temporary = folder / f"head-{os.getpid()}.tmp"
        temporary.write_text(json.dumps(pre_commit))
        temporary.replace(head)
        assert pre_commit is not None
        writer.commit(pre_commit)
    writer.close()


def stop_before_sending() -> None:
    """Stop this process once, between its look at the table and its request to the catalog."""
    send = Commit.send

    def stopping(self: Commit) -> None:
        Commit.send = send  # type: ignore[method-assign] # once only
        os.kill(os.getpid(), signal.SIGSTOP)
        send(self)

    Commit.send = stopping  # type: ignore[method-assign] # a crash point that only this test needs


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], sys.argv[4] == "stop")
