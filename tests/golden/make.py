"""Make the golden directories of the format that this program writes: `python -m tests.golden.make`.

Run it once for each format, with the last program that writes it, and commit what it leaves in `format-<version>`: a
data directory after a clean stop and one after a kill, each with a JSON of all that a client reads from it. Never make
those of an earlier format again.

Times that would run out before the tests are run (leases, the memory of queries) lie a hundred years ahead.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import fluss.sync
from fluss.model.paths import TablePath
from fluss.storage.catalog.catalog import LeaseEntry
from fluss.storage.directory import FORMAT_VERSION, LOCK_NAME, PID_NAME
from fluss.storage.kv.snapshot_files import list_snapshots
from fluss.storage.store import Storage, StorageOptions
from fluss.testing import FlussServer
from tests.golden.content import DATABASE, QUERY, describe, fill, fill_last, fill_more

HERE: Final = Path(__file__).parent
LEASE: Final = "golden lease"
YEARS_100_MS: Final = 100 * 365 * 24 * 60 * 60 * 1_000
SNAPSHOT_S_MAX: Final = 30.0
POLL_S: Final = 0.05
SETTINGS: Final = '"log.segment.file-size" = 4096\n"kv.snapshot.interval-ms" = 200\n'
LEFT_OUT: Final = (LOCK_NAME, PID_NAME, "catalog.db-shm", "LOG", "LOCK")


def make(directory: Path, *, is_killed: bool) -> dict[str, Any]:
    """A data directory in `directory / "data"`, and what it holds."""
    settings = directory / "fluss.toml"
    settings.write_text(SETTINGS)
    server = FlussServer(directory / "data", args=["--config", str(settings)])
    with server:
        with fluss.sync.connect(server.bootstrap_servers) as connection:
            fill(connection)
            _await_snapshots(server.data_dir, 1)
            fill_more(connection, 1)
            _await_snapshots(server.data_dir, 2)
        server.terminate()
        asyncio.run(_set_times(server.data_dir))
        # From here on no snapshots: the last rows are in the logs alone.
        settings.write_text(SETTINGS.replace("= 200", "= 3600000"))
        server.start()
        with fluss.sync.connect(server.bootstrap_servers) as connection:
            fill_more(connection, 2)
            fill_last(connection)
            content = describe(connection)
        server.kill() if is_killed else server.terminate()
    return content


def _await_snapshots(data_dir: Path, count: int) -> None:
    """Of all buckets of the table that gets more rows between them."""
    deadline_s = time.monotonic() + SNAPSHOT_S_MAX
    while not any(len(list_snapshots(path.parent)) >= count for path in data_dir.glob("tables/*/*/snapshots")):
        assert time.monotonic() < deadline_s, "no snapshots are made"
        time.sleep(POLL_S)
    time.sleep(1)  # those of the other buckets


async def _set_times(data_dir: Path) -> None:
    ahead_ms = int(time.time() * 1_000) + YEARS_100_MS
    storage = await Storage.open(StorageOptions(data_dir))
    for query in list(storage.catalog.staged_queries().values()):
        await storage.catalog.put_staged_query(query._replace(used_ms=ahead_ms))
    entry = storage.catalog.table(TablePath(DATABASE, "keys"))
    newest = {bucket: list_snapshots(storage.bucket_path(bucket))[0].snapshot_id for bucket in storage.buckets(entry)}
    await storage.catalog.put_lease(LeaseEntry(LEASE, ahead_ms, newest))
    await storage.close()


def pack(data_dir: Path, archive: Path) -> None:
    """Without what belongs to a process, and without names of people and machines."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name.startswith(LEFT_OUT):
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        tar.add(data_dir, "data", filter=anonymous)


def main() -> None:
    target = HERE / f"format-{FORMAT_VERSION}"
    target.mkdir(exist_ok=True)
    for name in ("clean", "killed"):
        with tempfile.TemporaryDirectory() as scratch:
            content = make(Path(scratch), is_killed=name == "killed")
            pack(Path(scratch) / "data", target / f"{name}.tar.xz")
        tables = ",\n".join(f"{json.dumps(table)}: {json.dumps(value)}" for table, value in content.items())
        (target / f"{name}.json").write_text(f"{{\n{tables}\n}}\n")
    print(f"{target} is made, for query {QUERY!r} and lease {LEASE!r}")


if __name__ == "__main__":
    main()
