"""What `fluss doctor` finds in a data directory. Nothing is changed there, and a server may be running on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss.cli.doctor_scrub import scrub_findings
from fluss.cli.findings import Finding, ok, problem, warning
from fluss.cli.progress import ByteBar, size_text
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket

if TYPE_CHECKING:
    from fluss.storage.catalog_db import CatalogContent, TableEntry

_NAMED_MAX: Final = 5
_RESTORE: Final = "Restore the directory from a backup ('fluss restore'), or drop the table."
_FREE_BYTES_MIN: Final = 1 << 30


def directory_findings(root: Path, bar: ByteBar) -> Iterator[Finding]:
    """All of them, in the order in which they are found."""
    from fluss.storage.catalog_read import is_served, read_catalog
    from fluss.storage.directory import HELD_NAME, read_version

    try:
        version = read_version(root)
    except (FlussError, OSError) as error:
        yield problem("format", str(error), "Name the directory that was given to 'fluss server --data-dir'.")
        return
    if version is None:
        yield problem("format", f"{root} is empty or no data directory", "Name one that a server has used.")
        return
    yield ok("format", f"version {version}")
    served = is_served(root)
    yield ok("server", "running; its last writes are looked at as they go" if served else "not running")
    yield _free_space(root)
    yield from scrub_findings(root)
    if (root / HELD_NAME).exists() and not served:
        yield warning("backup", "a backup was interrupted; its links take room", "The next start removes them.")
    try:
        catalog = read_catalog(root)
    except FlussError as error:
        yield problem("catalog", error.message, _RESTORE)
        return
    yield ok("catalog", f"{len(catalog.databases)} databases, {len(catalog.tables)} tables")
    yield from _orphans(root, catalog)
    yield from _logs(root, catalog, bar, served=served)


def _free_space(root: Path) -> Finding:
    from fluss.storage.disk_guard import disk_free_bytes

    free_bytes = disk_free_bytes(root)
    if free_bytes >= _FREE_BYTES_MIN:
        return ok("free space", size_text(free_bytes))
    return warning(
        "free space",
        f"{size_text(free_bytes)}; a server refuses writes below {size_text(_FREE_BYTES_MIN)}",
        "Free some space, or let tables keep less (table.log.ttl).",
    )


def _orphans(root: Path, catalog: CatalogContent) -> Iterator[Finding]:
    known = {str(table.table_id) for table in catalog.tables}
    known |= {f"{partition.table_id}/p{partition.partition_id}" for partition in catalog.partitions}
    parents = [root / "tables", *(root / "tables" / str(table.table_id) for table in catalog.tables)]
    found = [path for parent in parents if parent.is_dir() for path in parent.iterdir() if path.is_dir()]
    orphans = []
    for path in found:
        name = path.relative_to(root / "tables").as_posix()
        is_table_or_partition = "/" not in name or path.name.startswith("p")
        if is_table_or_partition and name not in known:
            orphans.append(name)
    if orphans:
        yield warning(
            "orphans",
            f"{len(orphans)} folders of dropped tables or partitions, such as tables/{orphans[0]}",
            "The next start of the server removes them.",
        )


def _logs(root: Path, catalog: CatalogContent, bar: ByteBar, *, served: bool) -> Iterator[Finding]:
    from fluss.storage.log_check import check_log, log_size_bytes

    buckets = list(_buckets(root, catalog))
    bar.begin("checking", sum(log_size_bytes(path) for _, _, path in buckets))
    batch_count = size_bytes = good = 0
    for table, bucket, path in buckets:
        name = f"{table.path} bucket {bucket.bucket_id}"
        if bucket.partition_id is not None:
            name += f" of partition {bucket.partition_id}"
        checked = check_log(path, bar.add)
        batch_count += checked.batch_count
        size_bytes += checked.size_bytes
        if checked.damage is not None:
            yield problem(name, checked.damage.message, f"Rows from offset {checked.end_offset} on: {_RESTORE}")
            continue
        if checked.torn is not None and not served:
            text = f"{checked.torn.message}; {checked.torn_bytes} bytes were not whole when the server ended"
            yield warning(name, text, "The next start cuts them off. If the server was not killed, restore a backup.")
        for stale in checked.stale if not served else ():
            yield warning(name, f"{stale.name} can't be used", "It is rebuilt when it is needed.")
        found = list(_snapshot_findings(name, path, checked.start_offset, table))
        yield from found
        good += not found
    yield ok("logs", f"{good} of {len(buckets)} buckets, {batch_count} batches, {size_text(size_bytes)} read")


def _buckets(root: Path, catalog: CatalogContent) -> Iterator[tuple[TableEntry, TableBucket, Path]]:
    from fluss.storage.directory import DataDirectory
    from fluss.storage.segment import list_base_offsets

    paths = DataDirectory.unlocked(root)
    partitions: dict[int, list[int]] = {}
    for partition in catalog.partitions:
        partitions.setdefault(partition.table_id, []).append(partition.partition_id)
    for table in catalog.tables:
        for partition_id in partitions.get(table.table_id, []) if table.partition_keys else [None]:
            for bucket_id in range(table.num_buckets):
                bucket = TableBucket(table.table_id, bucket_id, partition_id)
                path = paths.bucket_path(bucket)
                if list_base_offsets(path):
                    yield table, bucket, path


def _snapshot_findings(name: str, path: Path, start_offset: int, table: TableEntry) -> Iterator[Finding]:
    """A log of a primary-key table that was cut needs something from which its rows are rebuilt."""
    from fluss.storage.catalog_view import has_primary_key
    from fluss.storage.directory import STORE_NAME
    from fluss.storage.kv_snapshot_files import files_of, list_snapshots

    if not has_primary_key(table.table_json) or start_offset == 0:
        return
    usable = [one for one in list_snapshots(path) if one.log_offset >= start_offset and files_of(one)]
    if usable:
        return
    text = f"the log begins at {start_offset} and there is no snapshot of the rows before"
    if (path / STORE_NAME).exists():
        yield warning(name, f"{text} but for the store itself", "Make a backup, and let the server make snapshots.")
    else:
        yield problem(name, text, _RESTORE)
