"""A survey of damage in a data directory: a server's own verdicts, found without changing anything.

A server finds damage when it opens a bucket or reads a batch, and stops there. The survey reads everything once and
says of each damage what a repair would do and what that would lose; `repair` acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage import lake_offsets
from fluss.storage.catalog.db import PARTITION_ID, TABLE_ID, CatalogContent, LakeSnapshotEntry, TableEntry
from fluss.storage.catalog.read import CatalogCheck, check_catalog
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.damage.checks import LogCheck, OnBytes, Piece, check_log, log_size_bytes
from fluss.storage.directory import (
    LOST_NAME,
    MARKS_NAME,
    PARTITION_PREFIX,
    STAGING_NAME,
    STORE_NAME,
    DataDirectory,
)
from fluss.storage.kv.snapshot_files import Snapshot, list_snapshots, newest_log_offset
from fluss.storage.kv.store import DamagedKvStoreError, KvState
from fluss.storage.lake_snapshots import offsets_of
from fluss.storage.log.marks import Mark, Marks
from fluss.storage.log.segment import list_aside, list_base_offsets
from fluss.storage.staging import commit
from fluss.storage.store import numbered

# Each offset that is lost becomes an empty batch: 480 MB.
FILL_OFFSETS_MAX: Final = 10_000_000
RESTORE: Final = "Restore the directory from a backup ('fluss restore')."
RESTORE_OR_DROP: Final = "Restore the directory from a backup ('fluss restore'), or drop the table."
_CHECKS_MAX: Final = 3  # of a log that changes meanwhile
_HOLES_NAMED_MAX: Final = 5


@dataclass(frozen=True, kw_only=True)
class Damage:
    subject: str
    path: Path  # below the data directory
    text: str  # what is wrong
    repair: str = ""  # what a repair does; empty: there is none
    loss: str = ""  # what is lost by it; empty: nothing
    advice: str = ""  # what to do besides, or instead
    is_mended: bool = False  # by the next start of the server, without loss


@dataclass(frozen=True, kw_only=True)
class CatalogDamage(Damage):
    check: CatalogCheck
    folders: tuple[Path, ...] = ()  # of no table that it knows


@dataclass(frozen=True, kw_only=True)
class LogDamage(Damage):
    bucket: TableBucket
    table: TableEntry
    check: LogCheck


@dataclass(frozen=True, kw_only=True)
class SnapshotDamage(Damage):
    snapshot: Snapshot


@dataclass(frozen=True, kw_only=True)
class MovableDamage(Damage):
    """A file or folder that is only to be taken out of the way."""


class Note(NamedTuple):
    """Findings that are not damage, but good to know."""

    subject: str
    text: str
    advice: str


@dataclass
class Survey:
    """What was found."""

    is_served: bool = False
    content: CatalogContent | None = None
    damages: list[Damage] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    bucket_count: int = 0
    batch_count: int = 0
    size_bytes: int = 0  # of good batches


def survey(
    root: Path,
    on_begin: Callable[[int], None] = lambda _: None,
    on_bytes: OnBytes = lambda _: None,
    fill_offsets_max: int = FILL_OFFSETS_MAX,
    *,
    served: bool = False,
) -> Survey:
    """Read all of a directory, on which a server may be running.

    `on_begin` is told how many bytes the logs have, `on_bytes` how many were read.
    """
    surveyor = _Surveyor(root.absolute(), on_begin, on_bytes, fill_offsets_max)
    surveyor.found.is_served = served
    return surveyor.run()


class _Bucket(NamedTuple):
    """A bucket with files, or of which it is known that it had some."""

    name: str
    table: TableEntry
    bucket: TableBucket
    path: Path


class _Surveyor:
    def __init__(self, root: Path, on_begin: Callable[[int], None], on_bytes: OnBytes, fill_offsets_max: int) -> None:
        self._root = root
        self._directory = DataDirectory.unlocked(root)
        self._on_begin = on_begin
        self._on_bytes = on_bytes
        self._fill_offsets_max = fill_offsets_max
        self._marks = Marks.read(self._directory.marks_path)
        self.found = Survey()
        self._latest_lake: dict[int, LakeSnapshotEntry] = {}

    def run(self) -> Survey:
        found = self.found
        checked = check_catalog(self._root, self._marks.catalog, served=found.is_served)
        found.content = checked.content
        self._check_folders(checked)
        if checked.content is not None:
            self._latest_lake = {entry.table_id: entry for entry in checked.content.lake_snapshots}
            self._check_buckets(checked.content)
            self._check_staged()
            self._check_lake_offsets(checked.content)
        self._note_lost()
        return found

    # --- the catalog and folders

    def _check_folders(self, checked: CatalogCheck) -> None:
        path = self._directory.catalog_path.relative_to(self._root)
        if checked.content is None:
            if checked.problem is not None:
                self._add(
                    CatalogDamage(subject="catalog", path=path, text=checked.problem, advice=RESTORE, check=checked)
                )
            return
        unknown = list(self._unknown_folders(checked.content))
        never_issued = [found for found, is_issued in unknown if not is_issued]
        folders = tuple(found for found, _ in unknown)
        problem = checked.problem
        if never_issued and problem is None and not self.found.is_served:
            problem = f"it never heard of {never_issued[0].relative_to(self._root)}, so it is older than the data"
        elif problem is not None and not checked.lost_changes:
            # It has rotted, and what of it can't be told.
            self._add(CatalogDamage(subject="catalog", path=path, text=problem, advice=RESTORE, check=checked))
            return
        if problem is not None:
            self._add(_old_catalog(path, problem, checked, folders, self._root))
        elif unknown and not self.found.is_served:
            self._note_folders(folders)

    def _unknown_folders(self, content: CatalogContent) -> Iterator[tuple[Path, bool]]:
        """Folders of no table or partition of the catalog, and whether it has given out their ids."""
        tables = {table.table_id: table for table in content.tables}
        partition_ids = {partition.partition_id for partition in content.partitions}
        for table_id, path in numbered(self._directory.tables_path, ""):
            if table_id not in tables:
                yield path, table_id < content.counters[TABLE_ID]
            elif tables[table_id].partition_keys:
                for partition_id, folder in numbered(path, PARTITION_PREFIX):
                    if partition_id not in partition_ids:
                        yield folder, partition_id < content.counters[PARTITION_ID]

    def _note_folders(self, folders: tuple[Path, ...]) -> None:
        example = f"such as {folders[0].relative_to(self._root)}"
        if self._marks.catalog is not None:
            text = f"{len(folders)} folders of dropped tables or partitions, {example}"
            self.found.notes.append(Note("orphans", text, "The next start of the server removes them."))
            return
        text = (
            f"{len(folders)} folders of no table of the catalog, {example}, and no '{MARKS_NAME}' file to vouch for it"
        )
        advice = "If a table is missing, restore a backup now: the start after the next removes them."
        self.found.notes.append(Note("orphans", text, advice))

    # --- logs

    def _check_buckets(self, content: CatalogContent) -> None:
        buckets = list(self._buckets(content))
        self._on_begin(sum(log_size_bytes(bucket.path) for bucket in buckets))
        self.found.bucket_count = len(buckets)
        if content.tables and not self._marks.buckets and self._marks.catalog is None:
            text = f"the file '{MARKS_NAME}' is missing or damaged: what was safe is known by checkpoints only"
            self.found.notes.append(Note("marks", text, "The next start makes it anew."))
        for bucket in buckets:
            self._check_bucket(bucket)

    def _buckets(self, content: CatalogContent) -> Iterator[_Bucket]:
        partitions: dict[int, list[tuple[int, str]]] = {}
        for entry in content.partitions:
            partitions.setdefault(entry.table_id, []).append((entry.partition_id, entry.name))
        for table in content.tables:
            for partition_id, name in partitions.get(table.table_id, []) if table.partition_keys else [(None, "")]:
                for bucket_id in range(table.num_buckets):
                    bucket = TableBucket(table.table_id, bucket_id, partition_id)
                    path = self._directory.bucket_path(bucket)
                    if list_base_offsets(path) or self._marks.get(bucket) or (path / STORE_NAME).exists():
                        subject = f"{table.path} bucket {bucket_id}" + (f" of partition {name}" if name else "")
                        yield _Bucket(subject, table, bucket, path)

    def _check_bucket(self, bucket: _Bucket) -> None:
        stores = _Stores(bucket.path) if has_primary_key(bucket.table.table_json) else None
        if stores is not None and not self.found.is_served:
            stores.look()
        mark, checked = self._check_log(bucket, stores)
        self.found.batch_count += checked.batch_count
        self.found.size_bytes += checked.size_bytes
        if checked.holes:
            self._add(self._log_damage(bucket, checked, stores))
        if not self.found.is_served:
            self._note_log(bucket, checked)
            if stores is not None:
                self._check_stores(bucket, checked, stores, mark)

    def _check_log(self, bucket: _Bucket, stores: _Stores | None) -> tuple[Mark | None, LogCheck]:
        for _ in range(_CHECKS_MAX if self.found.is_served else 1):
            mark = self._marks.get(bucket.bucket)
            checked = check_log(bucket.path, self._on_bytes, mark, self._reached(bucket, mark, stores))
            if not checked.holes:
                break
            self._marks = Marks.read(self._directory.marks_path)  # Retention may have removed segments meanwhile.
        return mark, checked

    def _reached(self, bucket: _Bucket, mark: Mark | None, stores: _Stores | None) -> int:
        """How far others know the log to have reached; nothing where a power loss may take from the log."""
        if _may_lack_rows(mark):
            return 0
        latest = self._latest_lake.get(bucket.bucket.table_id)
        try:
            tiered = 0 if latest is None else offsets_of(latest).get(bucket.bucket, 0)
        except FlussError:
            tiered = 0
        return max(newest_log_offset(bucket.path), tiered, 0 if stores is None else stores.covered_offset)

    def _log_damage(self, bucket: _Bucket, checked: LogCheck, stores: _Stores | None) -> LogDamage:
        holes = checked.holes
        lost = sum(hole.end_offset - hole.offset for hole in holes)
        assert holes[0].problem is not None
        path = holes[0].problem.path.relative_to(self._root)
        damage = LogDamage(
            subject=bucket.name,
            path=path,
            text=_holes_text(holes),
            repair="no offset is missing; the marks are made to fit",
            bucket=bucket.bucket,
            table=bucket.table,
            check=checked,
        )
        if not lost:
            return damage
        if lost > self._fill_offsets_max:
            advice = (
                f"{lost} offsets are lost. An empty batch for each takes {HEADER_SIZE_BYTES * lost:,} bytes in all; "
                f"--fill-max allows {self._fill_offsets_max} of them. Raise it, or: {RESTORE_OR_DROP}"
            )
            return replace(damage, repair="", advice=advice)
        loss = _log_loss(holes, lost) if stores is None else _changelog_loss(holes, stores)
        return replace(damage, repair="an empty batch takes the place of each lost offset", loss=loss)

    def _note_log(self, bucket: _Bucket, checked: LogCheck) -> None:
        notes = self.found.notes
        if checked.torn is not None and not checked.holes:
            text = f"{checked.torn.message}; {checked.torn_bytes} bytes were not whole when the server ended"
            notes.append(Note(bucket.name, text, "The next start cuts them off and keeps them in a *.cut file."))
        for stale in checked.stale:
            notes.append(Note(bucket.name, f"{stale.name} can't be used", "It is rebuilt when it is needed."))
        aside = list_aside(bucket.path)
        if aside:
            text = f"{len(aside)} files with bytes that were cut off, such as {aside[0].relative_to(self._root)}"
            notes.append(Note(bucket.name, text, "Remove them if no row is missed."))

    # --- stores and snapshots

    def _check_stores(self, bucket: _Bucket, checked: LogCheck, stores: _Stores, mark: Mark | None) -> None:
        start, end = checked.start_offset, checked.end_offset
        source = stores.source(start, end)
        for snapshot, reason in stores.bad_snapshots():
            self._add(
                SnapshotDamage(
                    subject=bucket.name,
                    path=snapshot.path.relative_to(self._root),
                    text=f"the snapshot can't be used: {reason}",
                    repair="it is renamed to *.damaged, so that nobody uses it; the server makes new ones",
                    is_mended=True,
                    snapshot=snapshot,
                )
            )
        problem = stores.live_problem(start, end)
        if problem is not None or (source is None and start > 0 and not stores.live_path.exists()):
            self._add_store(bucket, problem or "the store is missing", start, source, stores)
        elif start > 0 and source is None:
            text = f"the log begins at {start} and there is no snapshot of the rows before but for the store itself"
            advice = "Make a backup, and let the server make snapshots."
            self.found.notes.append(Note(bucket.name, text, advice))

    def _add_store(self, bucket: _Bucket, problem: str, start: int, source: Snapshot | None, stores: _Stores) -> None:
        path = stores.live_path.relative_to(self._root)
        if source is None and start > 0:
            text = f"{problem}; the log begins at {start} and no snapshot has the rows before"
            self._add(MovableDamage(subject=bucket.name, path=path, text=text, advice=RESTORE_OR_DROP))
            return
        origin = "the log" if source is None else f"snapshot {source.snapshot_id} and the log"
        repair = f"it is moved to '{LOST_NAME}'; the server makes it anew from {origin}"
        self._add(MovableDamage(subject=bucket.name, path=path, text=problem, repair=repair, is_mended=True))

    # --- staged writes and the lake

    def _check_staged(self) -> None:
        for directory in self._directory.tables_path.glob(f"*/{STAGING_NAME}"):
            for file in commit.listed(directory):
                try:
                    commit.read(directory, file.key)
                except FileNotFoundError:
                    continue
                except FlussError:
                    self._add_file(
                        f"staged batch {file.key.batch_id} of {self._table_name(file.key.table_id)}",
                        directory / file.key.file_name,
                        "the staged rows are damaged",
                        "the rows of this file; their batch can't be committed",
                        "Let the query write the batch anew.",
                    )

    def _check_lake_offsets(self, content: CatalogContent) -> None:
        registered = {entry.file_name for entry in content.lake_snapshots}
        for table in content.tables:
            directory = self._directory.lake_offsets_path(table.table_id)
            for path in sorted(directory.glob(f"*{lake_offsets.SUFFIX}")):
                try:
                    lake_offsets.decode(path.read_bytes(), table.table_id, path.name)
                except FileNotFoundError:
                    continue
                except FlussError as error:
                    self._add_file(
                        f"lake offsets of {table.path}",
                        path,
                        error.message,
                        "" if path.name in registered else "how far a lake snapshot that is not registered reaches",
                        "Tier the table again.",
                    )

    def _add_file(self, subject: str, path: Path, text: str, loss: str, advice: str) -> None:
        name = path.relative_to(self._root)
        repair = f"it is moved to '{LOST_NAME}'"
        self._add(MovableDamage(subject=subject, path=name, text=text, repair=repair, loss=loss, advice=advice))

    def _table_name(self, table_id: int) -> str:
        tables = [] if self.found.content is None else self.found.content.tables
        return next((str(table.path) for table in tables if table.table_id == table_id), f"table {table_id}")

    def _note_lost(self) -> None:
        if (self._root / LOST_NAME).exists():
            text = f"{self._root / LOST_NAME} has what earlier repairs took out of the way"
            self.found.notes.append(Note(LOST_NAME, text, "Remove it when nothing of it is missed."))

    def _add(self, damage: Damage) -> None:
        self.found.damages.append(damage)


class _Stores:
    """The store of a bucket and its snapshots, as far as they can be used."""

    def __init__(self, bucket_path: Path) -> None:
        self.live_path = bucket_path / STORE_NAME
        self._snapshots = list_snapshots(bucket_path)
        self._states: dict[Path, KvState | str] = {}  # what they cover, or why they can't be used

    def look(self) -> None:
        """Read all of them."""
        for path in (self.live_path, *(snapshot.path for snapshot in self._snapshots)):
            if path.exists():
                self._states[path] = _state(path)

    def _covered(self, path: Path) -> int | None:
        state = self._states.get(path)
        return state.covered_offset if isinstance(state, KvState) else None

    @property
    def covered_offset(self) -> int:
        """Up to where the store has the changes; 0 for one that can't be used."""
        return self._covered(self.live_path) or 0

    def rebuilt_from(self) -> int:
        """The offset from which on the log is needed."""
        covered = (self._covered(path) for path in (self.live_path, *(snapshot.path for snapshot in self._snapshots)))
        return next((offset for offset in covered if offset is not None), 0)

    def live_problem(self, log_start: int, log_end: int) -> str | None:
        """Why the store can't be used."""
        state = self._states.get(self.live_path)
        if not isinstance(state, KvState):
            return None if state is None else f"the store can't be used: {state}"
        if log_start <= state.covered_offset <= log_end:
            return None
        return f"the store ends at {state.covered_offset}, the log goes from {log_start} to {log_end}"

    def bad_snapshots(self) -> Iterator[tuple[Snapshot, str]]:
        for snapshot in self._snapshots:
            state = self._states.get(snapshot.path)
            if isinstance(state, str):
                yield snapshot, state

    def source(self, log_start: int, log_end: int) -> Snapshot | None:
        """The newest snapshot that the store can be made of."""
        for snapshot in self._snapshots:
            covered = self._covered(snapshot.path)
            if covered is not None and log_start <= covered <= log_end:
                return snapshot
        return None


def _state(path: Path) -> KvState | str:
    from fluss.storage.damage.checks import state_of  # RocksDB is not there for those who have log tables only

    try:
        return state_of(path)
    except DamagedKvStoreError as error:
        return error.message


def _may_lack_rows(mark: Mark | None) -> bool:
    """Whether the server ran with durability "os", where a power loss may take acknowledged rows."""
    return mark is not None and not mark.is_synced


def _old_catalog(
    path: Path, problem: str, checked: CatalogCheck, folders: tuple[Path, ...], root: Path
) -> CatalogDamage:
    """A catalog that is whole but lacks its last changes."""
    moved = ", ".join(str(folder.relative_to(root)) for folder in folders[:_HOLES_NAMED_MAX])
    more = len(folders) - _HOLES_NAMED_MAX
    moved += f" and {more} more" if more > 0 else ""
    repair = "the catalog is taken as it is, and its ids go on behind those that the data has"
    if folders:
        repair += f"; folders of tables that it does not know are moved to '{LOST_NAME}': {moved}"
    loss = (
        "the last creations, changes and drops of tables and partitions; rows of tables that are not in the catalog; "
        "which batches exactly-once queries committed last, so that one may be stored twice; the last lake snapshots"
    )
    advice = f"A backup that has these changes is better. {RESTORE}"
    return CatalogDamage(
        subject="catalog",
        path=path,
        text=problem,
        repair=repair,
        loss=loss,
        advice=advice,
        check=checked,
        folders=folders,
    )


def _holes_text(holes: list[Piece]) -> str:
    texts = [hole.problem.message for hole in holes[:_HOLES_NAMED_MAX] if hole.problem is not None]
    more = len(holes) - _HOLES_NAMED_MAX
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def offsets_text(holes: list[Piece]) -> str:
    """The ranges of lost offsets."""
    ranges = [f"{hole.offset} to {hole.end_offset - 1}" for hole in holes if hole.end_offset > hole.offset]
    more = len(ranges) - _HOLES_NAMED_MAX
    return ", ".join(ranges[:_HOLES_NAMED_MAX]) + (f" and {more} more ranges" if more > 0 else "")


def _log_loss(holes: list[Piece], lost: int) -> str:
    return f"{lost} {'row' if lost == 1 else 'rows'}, at offsets {offsets_text(holes)}"


def _changelog_loss(holes: list[Piece], stores: _Stores) -> str:
    """The loss of a damaged changelog: rows are in the store, but for changes that it has not got yet."""
    covered = stores.rebuilt_from()
    loss = f"the changelog lacks the changes at offsets {offsets_text(holes)}"
    if all(hole.end_offset <= covered for hole in holes):
        return f"{loss}; the rows themselves are in the store, and stay"
    return f"{loss}; keys that were changed there from offset {covered} on keep their earlier rows"
