"""Repairing a data directory: what was found damaged is put in order, and nothing is destroyed.

Files that are replaced or taken out of the way go to the folder `lost`, under the same names. A repair that was
interrupted is finished by the next one: each step leaves either the damage as it was or a file that is whole.

A log keeps its good batches at their offsets. Each offset that is lost becomes an empty batch, which every reader
passes over, so no offset is used twice and none is missing. The state of writers is made from what is left: a writer
that sends a lost batch again is not told that it is stored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from fluss.formats.batches.log_batch import encode_batch, stamp
from fluss.model.descriptor import KvFormat
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.model.schema import Schema
from fluss.model.tables.options import KV_FORMAT
from fluss.storage import files
from fluss.storage.catalog.catalog import PARTITIONS_PER_TABLE_MAX
from fluss.storage.catalog.db import (
    GENERATION,
    PARTITION_ID,
    TABLE_ID,
    CatalogContent,
    CatalogDatabase,
    TableEntry,
)
from fluss.storage.catalog.view import FIRST_ROW_ID, ROW_ID_MAX, block_of, has_primary_key
from fluss.storage.damage.checks import CheckedSegment, LogCheck, Piece
from fluss.storage.damage.survey import CatalogDamage, Damage, LogDamage, MovableDamage, SnapshotDamage, Survey
from fluss.storage.directory import LOST_NAME, PARTITION_PREFIX, STORE_NAME, TABLES_NAME, DataDirectory
from fluss.storage.failpoints import Site
from fluss.storage.kv.snapshot_files import set_aside
from fluss.storage.kv.store import DamagedKvStoreError
from fluss.storage.log.marks import CatalogMark, Mark, Marks
from fluss.storage.log.recovery import lineage
from fluss.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX, WRITERS_SUFFIX, segment_path
from fluss.storage.store import numbered

_READ_BYTES: Final = 4 << 20
_FILLED_AT_ONCE: Final = 20_000
# So far behind its mark a catalog stays while it is repaired: an interrupted repair must not look like a finished one.
_CHANGES_AHEAD: Final = 16


class Repair:
    """Acts on a survey; the directory is locked, and nobody else writes to it."""

    def __init__(self, directory: DataDirectory, found: Survey) -> None:
        self._root = directory.root
        self._directory = directory
        self._found = found
        self._marks = Marks.open(directory.marks_path)

    def close(self) -> None:
        self._marks.close()

    def apply(self, damage: Damage) -> None:
        """Do what the damage says of its repair."""
        assert damage.repair, "this can't be repaired"
        if isinstance(damage, CatalogDamage):
            self._accept_catalog(damage)
        elif isinstance(damage, LogDamage):
            self._mend_log(damage)
        elif isinstance(damage, SnapshotDamage):
            set_aside(damage.snapshot)
        elif isinstance(damage, MovableDamage):
            self._move(self._root / damage.path)
        self._marks.sync()

    # --- keeping

    def _lost_path(self, path: Path) -> Path:
        """A free name in the folder of what is lost; the folders that lead to it are made."""
        target = self._root / LOST_NAME / path.relative_to(self._root)
        for parent in reversed([target.parent, *(p for p in target.parent.parents if p.is_relative_to(self._root))]):
            if not parent.exists():
                files.make_directory(parent, Site.REPAIR_KEEP)
                files.sync_directory(parent.parent, Site.REPAIR_KEEP)
        number, free = 0, target
        while free.exists():
            number += 1
            free = target.with_name(f"{target.name}.{number}")
        return free

    def _move(self, path: Path) -> None:
        """Take a file or folder out of the way."""
        if path.exists():
            target = self._lost_path(path)
            files.rename(path, target, Site.REPAIR_KEEP)
            files.sync_directory(target.parent, Site.REPAIR_KEEP)

    def _keep(self, path: Path) -> None:
        """Give a file that is about to be replaced a second name."""
        if path.exists():
            target = self._lost_path(path)
            files.link(path, target, Site.REPAIR_KEEP)
            files.sync_directory(target.parent, Site.REPAIR_KEEP)

    # --- logs

    def _mend_log(self, damage: LogDamage) -> None:
        path = self._directory.bucket_path(damage.bucket)
        for parent in reversed(lineage(path, self._root)):
            if not parent.exists():
                files.make_directory(parent, Site.REPAIR_KEEP)
                files.sync_directory(parent.parent, Site.REPAIR_KEEP)
        filler = _Filler(damage.check, damage.table)
        for segment in damage.check.segments:
            if segment.holes:
                self._mend_segment(path, segment, filler)
        first = next(segment.base_offset for segment in damage.check.segments if segment.holes)
        for segment in damage.check.segments:
            if segment.base_offset >= first:
                # What it says of the writers may speak of batches that are lost.
                self._move(segment_path(path, segment.base_offset, WRITERS_SUFFIX))
            if segment.holes:
                self._move(segment_path(path, segment.base_offset, INDEX_SUFFIX))
        self._put_mark(path, damage.bucket, damage.check)

    def _mend_segment(self, directory: Path, segment: CheckedSegment, filler: _Filler) -> None:
        path = segment_path(directory, segment.base_offset, LOG_SUFFIX)
        self._keep(path)
        files.replace_parts(path, _content(path, segment, filler), Site.REPAIR_REPLACE, durable=True)

    def _put_mark(self, directory: Path, bucket: TableBucket, check: LogCheck) -> None:
        last = check.segments[-1]
        position = last.pieces[-1].end if last.pieces else 0
        if last.holes:
            position = os.stat(segment_path(directory, last.base_offset, LOG_SUFFIX)).st_size
        self._marks.put(bucket, Mark(check.start_offset, last.base_offset, position, check.end_offset))

    # --- the catalog

    def _accept_catalog(self, damage: CatalogDamage) -> None:
        """Take a catalog that lacks its last changes for the truth.

        It stays behind its mark until the folders that it does not know are out of the way: a server would remove them.
        """
        content, mark = self._found.content, self._marks.catalog
        assert content is not None
        generation = max(damage.check.generation, 0 if mark is None else mark.generation)
        self._put_catalog(CatalogMark(generation + _CHANGES_AHEAD, is_settled=False))
        lost = damage.check.lost_changes
        next_ids, row_ids = self._next_ids(content, lost), self._next_row_ids(content, lost)
        with closing(CatalogDatabase(self._directory.catalog_path)) as database:
            database.raise_counters(next_ids)
            if row_ids:
                database.set_row_ids(row_ids)
            for folder in damage.folders:
                self._move(folder)
            database.raise_counters({GENERATION: generation + _CHANGES_AHEAD})
            settled = database.settle()
            self._put_catalog(CatalogMark(database.generation, True, *settled))

    def _put_catalog(self, mark: CatalogMark) -> None:
        self._marks.put_catalog(mark)
        self._marks.sync()

    def _next_ids(self, content: CatalogContent, lost_changes: int) -> dict[str, int]:
        """Ids behind all that folders and marks have, and behind what the lost changes may have given out."""
        table_ids = {bucket.table_id for bucket in self._marks.buckets}
        partition_ids = {bucket.partition_id for bucket in self._marks.buckets if bucket.partition_id is not None}
        for tables in (self._directory.tables_path, self._root / LOST_NAME / TABLES_NAME):
            for table_id, path in numbered(tables, ""):
                table_ids.add(table_id)
                partition_ids.update(number for number, _ in numbered(path, PARTITION_PREFIX))
        partitions = lost_changes * PARTITIONS_PER_TABLE_MAX
        return {
            TABLE_ID: max(content.counters[TABLE_ID] + lost_changes, *(number + 1 for number in table_ids), 0),
            PARTITION_ID: max(
                content.counters[PARTITION_ID] + partitions, *(number + 1 for number in partition_ids), 0
            ),
        }

    def _next_row_ids(self, content: CatalogContent, lost_changes: int) -> dict[int, int]:
        """The next ids of auto-increment columns: behind the rows, and those that lost changes may have given out."""
        found = {}
        for table in content.tables:
            column = _auto_increment(table)
            if column is not None:
                jump = (lost_changes + 1) * block_of(table.table_json)
                after_rows = self._row_id_max(table, column, content) + 1
                next_id = max(content.row_ids.get(table.table_id, FIRST_ROW_ID) + jump, after_rows)
                found[table.table_id] = min(next_id, ROW_ID_MAX)
        return found

    def _row_id_max(self, table: TableEntry, column: str, content: CatalogContent) -> int:
        """The greatest id in the rows of a table, as far as its stores can be read."""
        import pyarrow.compute as pc  # takes long to load, and few tables have such a column

        from fluss.formats.rows.values import ValueCodec
        from fluss.storage.damage.checks import looked_at

        codec = ValueCodec(_schemas(table, content), _kv_format(table))
        greatest = 0
        for path in self._directory.table_path(table.table_id).rglob(STORE_NAME):
            with suppress(DamagedKvStoreError), looked_at(path) as store:
                for values in store.values():
                    found = pc.max(codec.decode(values).column(column)).as_py()
                    greatest = max(greatest, found or 0)
        return greatest


class _Filler:
    """Makes the empty batches of a log."""

    def __init__(self, check: LogCheck, table: TableEntry) -> None:
        self._pieces = [piece for segment in check.segments for piece in segment.pieces if piece.problem is None]
        self._schema_id = table.schema_id
        self._append_only = not has_primary_key(table.table_json)

    def batches(self, hole: Piece) -> Iterator[bytes]:
        """One for each offset of a hole, committed when the batch before it was."""
        before = [piece for piece in self._pieces if piece.end_offset <= hole.offset]
        near = before[-1:] or self._pieces[:1]
        timestamp_ms = before[-1].timestamp_ms if before else 0
        schema_id = near[0].schema_id if near else self._schema_id
        batch = encode_batch(b"", schema_id=schema_id, record_count=0, append_only=self._append_only)
        for first in range(hole.offset, hole.end_offset, _FILLED_AT_ONCE):
            last = min(first + _FILLED_AT_ONCE, hole.end_offset)
            data = bytearray(batch) * (last - first)
            for number in range(last - first):
                stamp(data, number * len(batch), first + number, timestamp_ms)
            yield bytes(data)


def _content(path: Path, segment: CheckedSegment, filler: _Filler) -> Iterator[bytes]:
    """A segment's good batches, and empty ones for what is lost."""
    for piece in segment.pieces:
        if piece.problem is not None:
            yield from filler.batches(piece)
            continue
        with path.open("rb", buffering=0) as file:
            position = piece.position
            while position < piece.end:
                file.seek(position)
                data = file.read(min(_READ_BYTES, piece.end - position))
                if not data:
                    raise FlussError(f"{path} became shorter while it was repaired; begin again.")
                yield data
                position += len(data)


def _auto_increment(table: TableEntry) -> str | None:
    """The auto-increment column of a table."""
    schema = Schema.from_json(json.loads(table.table_json)["schema"])
    return next(iter(schema.get_auto_increment_columns()), None)


def _schemas(table: TableEntry, content: CatalogContent) -> dict[int, Schema]:
    return {
        schema_id: Schema.from_json(json.loads(schema_json))
        for table_id, schema_id, schema_json in content.schemas
        if table_id == table.table_id
    }


def _kv_format(table: TableEntry) -> str:
    properties = json.loads(table.table_json).get("properties", {})
    return str(properties.get(KV_FORMAT, KvFormat.COMPACTED)).upper()


def in_order(damages: Sequence[Damage]) -> list[Damage]:
    """The catalog last: until then a server refuses the directory."""
    return sorted(damages, key=lambda damage: isinstance(damage, CatalogDamage))
