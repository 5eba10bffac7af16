"""The fold of a batch of puts: its changelog and what is stored in the end; the last change of each key.

Nothing here reads or writes a table. In the fold of puts, whole rows that replace each other or are dropped stay bytes,
and are decoded once, as changes; that is also the check that they are rows. Where rows are merged, by partial updates
and aggregates, it is done column by column, and only what is stored is made bytes again.

The last change of each key in a stretch of a changelog is what there is behind the stretch; the first one, found
backwards, is what there was before it, by the rows that the changelog kept of each change. Keys are compared as bytes,
so that all types and several columns are one case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import compress
from operator import not_
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.arrow.payload import numbers_array, texts_array
from fluss.formats.batches.kv_batch import KvRecords
from fluss.formats.changelog.aggregation import CHANGES_SIZE_MAX_BYTES, Merges, aggregated, taken, too_large
from fluss.formats.rows.codecs import view_of
from fluss.formats.rows.values import ValueCodec
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.records import ChangeType
from fluss.model.schema import Column, Schema
from fluss.model.tables.merge_rules import ChangelogImage, DeleteBehavior, MergeEngine, MergeRules

_INT32_MIN: Final = -(1 << 31)
_INT64_MIN: Final = -(1 << 63)
_INSERT: Final = 1
# Gives that many numbers that nobody else gets.
Numbering: TypeAlias = Callable[[int], Sequence[int]]


class FoldedPuts(NamedTuple):
    """What a batch changes; without a change an empty log batch is due. The first three are those of the changelog."""

    change_types: bytes
    keys: list[bytes]
    rows: pa.RecordBatch  # of the newest schema
    state: dict[bytes, bytes | None]  # what is to be stored at every key that changed; None: nothing


class Folder:
    """Folds batches of puts into changes of one table, by its rules and its schemas so far; has no state."""

    __slots__ = ("_codec", "_number_index", "_overwrite", "_rules")

    def __init__(self, rules: MergeRules, codec: ValueCodec) -> None:
        schema = codec.schema
        rules.check_schema(schema)
        self._rules = rules
        self._overwrite = MergeRules(delete_behavior=DeleteBehavior.ALLOW, image=rules.image)
        self._codec = codec
        numbered = schema.get_auto_increment_columns()
        self._number_index = schema.column_names.index(numbered[0]) if numbered else None

    @property
    def numbers_rows(self) -> bool:
        """Whether `fold` needs numbers, at most one for every record."""
        return self._number_index is not None

    def keys_to_read(
        self, records: KvRecords, target_columns: Sequence[int] = (), *, overwrite: bool = False
    ) -> list[bytes]:
        """The keys whose stored values `fold` has to know, each once."""
        rules = self._overwrite if overwrite else self._rules
        if self._is_blind(rules, self._targets(rules, target_columns)):
            return list(dict.fromkeys(compress(records.keys, map(not_, records.values))))
        return list(dict.fromkeys(records.keys))

    def fold(
        self,
        records: KvRecords,
        old: dict[bytes, bytes | None],
        target_columns: Sequence[int] = (),
        *,
        overwrite: bool = False,
        number: Numbering | None = None,
    ) -> FoldedPuts:
        """What the records do, each after those before it. `old`: what is stored; a key that is not there has nothing.

        `target_columns` are the indexes of a partial update; none means that rows are whole. `overwrite` goes past the
        merge engine. `number` is called once at most, for the rows that are new.
        """
        rules = self._overwrite if overwrite else self._rules
        targets = self._targets(rules, target_columns)
        records = _without_deletes(rules, records)
        if targets is not None or rules.engine is MergeEngine.AGGREGATION:
            return self._merged(rules, records, old, targets, number)
        image = (rules.image is ChangelogImage.FULL, not self._is_blind(rules, targets))
        versions = self._versions(records, old) if rules.engine is MergeEngine.VERSIONED else ()
        folded = kernel.fold_changes(*records, old, *image, rules.engine is MergeEngine.FIRST_ROW, *versions)
        change_types, keys, values, state = folded
        self._check_size(len(values), sum(map(len, values)))
        return FoldedPuts(bytes(change_types), keys, self._codec.decode(values), state)

    def _is_blind(self, rules: MergeRules, targets: set[int] | None) -> bool:
        """Whether an upsert does not depend on what is there: it is written as an update, be it one or not."""
        return rules.image is ChangelogImage.WAL and rules.engine is None and targets is None

    def _targets(self, rules: MergeRules, target_columns: Sequence[int]) -> set[int] | None:
        """Target columns that are worth a partial update."""
        schema = self._codec.schema
        if self._number_index is not None:
            _check_number_column(schema.column_names[self._number_index], self._number_index, target_columns)
        if not target_columns:
            return None
        if rules.engine in (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED):
            raise InvalidRequestError(
                f"The merge engine {rules.engine} takes whole rows only: write all columns.",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        targets = set(target_columns)
        if targets == set(range(len(schema.columns))):
            return None
        check_target_columns(schema, targets)
        return targets

    def _versions(self, records: KvRecords, old: dict[bytes, bytes | None]) -> tuple[list[int], dict[bytes, int]]:
        """Versions of the records, which have no deletes, and of what is stored."""
        present = list(compress(old, old.values()))
        stored = self._version_numbers(list(filter(None, old.values())))
        return self._version_numbers(list(filter(None, records.values))), dict(zip(present, stored, strict=True))

    def _version_numbers(self, values: list[bytes]) -> list[int]:
        column = self._codec.decode(values).column(self._rules.version_column)
        is_int32 = column.type == pa.int32()
        # As Java has it: no version is the smallest number there is.
        numbers = column.view(pa.int32() if is_int32 else pa.int64()).fill_null(_INT32_MIN if is_int32 else _INT64_MIN)
        data = view_of(numbers.buffers()[1])
        width = 4 if is_int32 else 8
        used = data[width * numbers.offset : width * (numbers.offset + len(numbers))]
        return used.cast("i" if is_int32 else "q").tolist()

    def _merged(
        self,
        rules: MergeRules,
        records: KvRecords,
        old: dict[bytes, bytes | None],
        targets: set[int] | None,
        number: Numbering | None,
    ) -> FoldedPuts:
        """Changes where rows are merged column by column.

        Columns that are no target stay what they were before the batch, or are null: no record of it can change them,
        and a row is removed only where they are all null. So whether a delete leaves a row is known beforehand.
        """
        codec = self._codec
        columns = codec.schema.columns
        keys_at = codec.schema.primary_key_indexes
        self._check_size(len(old) + len(records.keys))
        stored = codec.decode(list(filter(None, old.values())))
        new = self._given(records)
        places = dict(zip(compress(old, old.values()), range(stored.num_rows), strict=True))
        others = set() if targets is None else set(range(len(columns))) - targets
        merged, origins, change_types, keys, change_rows, state = kernel.chain_changes(
            *records,
            places,
            _kept(stored, others) if others else None,
            self.numbers_rows,
            rules.image is ChangelogImage.FULL,
            rules.engine is None and targets == set(keys_at),
        )
        self._check_size(len(change_types))
        merges, origin, changed_at = Merges(len(places), merged), _int32(origins), _int32(change_rows)
        kept_at = pa.array([row for row in state.values() if row >= 0], pa.int32())
        changed, kept = [], []
        for index, column in enumerate(columns):
            given = new[index]
            if index in others:
                given = pa.nulls(len(given), given.type)
            if index == self._number_index:
                given = self._numbered(given, change_types, change_rows, len(places), number)
            before = stored.column(index)
            if index in others or index in keys_at:
                given = taken(pa.concat_arrays([before, given]), origin)
            elif rules.engine is MergeEngine.AGGREGATION:
                given = aggregated(pa.concat_arrays([before, given]), column, merges)
            # One column at a time: together they would be in memory once more.
            merged_column = pa.concat_arrays([before, given])
            changed.append(_with_values(column, taken(merged_column, changed_at)))
            kept.append(_with_values(column, taken(merged_column, kept_at)))
        rows, kept_rows = (pa.RecordBatch.from_arrays(arrays, schema=codec.arrow_schema) for arrays in (changed, kept))
        values = codec.encode(kept_rows, [None if row < 0 else b"" for row in state.values()])
        return FoldedPuts(bytes(change_types), keys, rows, dict(zip(state, values, strict=True)))

    def _check_size(self, row_count: int, size_bytes: int = 0) -> None:
        """Refuse rows that would take too much memory: a null takes a bit in a row, and its full width in Arrow."""
        if (size_bytes := max(size_bytes, row_count * self._codec.row_width_bytes)) > CHANGES_SIZE_MAX_BYTES:
            raise too_large(f"{size_bytes} bytes")

    def _given(self, records: KvRecords) -> list[pa.Array]:
        """The columns of the records; a delete has nothing."""
        given: list[pa.Array] = self._codec.decode(list(filter(None, records.values))).columns
        if all(records.values):
            return given
        is_upsert = pa.array(map(bool, records.values), pa.bool_())
        ordinals = pc.subtract(pc.cumulative_sum(is_upsert.cast(pa.int32())), 1)
        places = pc.if_else(is_upsert, ordinals, pa.scalar(None, pa.int32()))
        return [column.take(places) for column in given]

    def _numbered(
        self, empty: pa.Array, change_types: bytearray, change_rows: bytearray, stored: int, number: Numbering | None
    ) -> pa.Array:
        """Numbers for the records that are new rows."""
        count = change_types.count(_INSERT)
        if not count:
            return empty
        if number is None:
            raise ValueError("new rows of this table need numbers")
        numbers = number(count)
        limit = (1 << (empty.type.bit_width - 1)) - 1
        if max(numbers) > limit:
            column = self._codec.schema.columns[self._number_index or 0]
            raise InvalidRequestError(
                f"The auto-increment column {column.name!r} is {column.data_type}, which ends at {limit}: "
                "no number is left for a new row.",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        is_insert = pc.equal(pa.array(change_types, pa.uint8()), _INSERT)
        inserted = _int32(change_rows).filter(is_insert)
        records = pa.array(range(stored, stored + len(empty)), pa.int32())
        return pa.array(numbers, empty.type).take(pc.index_in(records, value_set=inserted))


def _int32(content: bytearray) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(content) // 4, [None, pa.py_buffer(content)], null_count=0)


def _with_values(column: Column, values: pa.Array) -> pa.Array:
    """The values, which must be there in a column that is NOT NULL."""
    if values.null_count and not column.data_type.nullable:
        raise InvalidRequestError(
            f"The column {column.name!r} is NOT NULL, and a row would have no value there.",
            ErrorCode.INVALID_TARGET_COLUMN,
        )
    return values


def _kept(stored: pa.RecordBatch, others: set[int]) -> memoryview:
    """A byte for every stored row: whether a delete of the other columns leaves something."""
    some = reduce(pc.or_, [stored.column(index).is_valid() for index in others])
    flags = some.cast(pa.uint8())
    return view_of(flags.buffers()[1])[flags.offset : flags.offset + len(flags)]


def _without_deletes(rules: MergeRules, records: KvRecords) -> KvRecords:
    """The records that count; a delete is refused where deletes are disabled."""
    if rules.deletes is DeleteBehavior.ALLOW or all(records.values):
        return records
    if rules.deletes is DeleteBehavior.DISABLE:
        raise InvalidRequestError(
            "The table takes no deletes: its table.delete.behavior is DISABLE.",
            ErrorCode.DELETION_DISABLED_EXCEPTION,
        )
    return KvRecords(list(compress(records.keys, records.values)), list(filter(None, records.values)))


def check_target_columns(schema: Schema, targets: set[int]) -> None:
    """Refuse a partial update that leaves out the key, or columns that can't be null."""
    columns = schema.columns
    keys = schema.primary_key_indexes
    filled = schema.get_auto_increment_columns()
    problem = None
    for index in targets:
        if not 0 <= index < len(columns):
            problem = f"there is no column {index}; the table has {len(columns)}"
    for index in keys:
        if index not in targets:
            problem = f"the key column {columns[index].name!r} must be among the target columns"
    for index, column in enumerate(columns):
        if index not in keys and not column.data_type.nullable and column.name not in filled:
            problem = f"the column {column.name!r} is NOT NULL, and only key columns may be so"
    if problem is not None:
        raise InvalidRequestError(f"No partial update: {problem}.", ErrorCode.INVALID_TARGET_COLUMN)


def _check_number_column(name: str, index: int, target_columns: Sequence[int]) -> None:
    if not target_columns or index in target_columns:
        raise InvalidRequestError(
            f"The auto-increment column {name!r} is filled by the server: write the other columns as a partial update.",
            ErrorCode.INVALID_TARGET_COLUMN,
        )


# Changes that wait before they are folded into the rest: few enough to be held, enough to make it worth the while.
PENDING_ROWS_MAX: Final = 500_000

_KEY, _REMOVED, _PLACE = "key", "removed", "place"
_KINDS: Final = texts_array([kind.short_string() for kind in ChangeType])


class LastChanges(NamedTuple):
    """One change of each key that has any, in the order of the log."""

    keys: pa.BinaryArray
    is_removed: pa.ChunkedArray
    """Whether the key is gone, or was not there before"""
    rows: pa.Table


class LastChangeFold:
    """Folds changes that come in the order of their log. Not for an event loop: it works on all rows at once."""

    def __init__(
        self,
        encode: Callable[[pa.RecordBatch], pa.BinaryArray],
        *,
        backwards: bool = False,
        pending_bytes_max: int | None = None,
    ) -> None:
        self._encode = encode
        self._pending_bytes_max = pending_bytes_max
        # The row as it was before an update says nothing about what is there now, and the other way round.
        void, removal, self._chosen = (
            (ChangeType.UpdateAfter, ChangeType.Insert, "min")
            if backwards
            else (ChangeType.UpdateBefore, ChangeType.Delete, "max")
        )
        self._void, self._removal = pa.Array.from_buffers(pa.uint8(), 2, [None, pa.py_buffer(bytes([void, removal]))])
        self._state: pa.Table | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0

    def add(self, change_types: pa.Array, rows: pa.RecordBatch) -> None:
        """Take further changes; their types are numbers of ChangeType."""
        lasting = pc.not_equal(change_types, self._void)
        rows, change_types = rows.filter(lasting), change_types.filter(lasting)
        if not rows.num_rows:
            return
        # Columns of the table are told from the first two by place: they may have the same names.
        columns = [self._encode(rows), pc.equal(change_types, self._removal), *rows.columns]
        self._pending.append(pa.RecordBatch.from_arrays(columns, names=[_KEY, _REMOVED, *rows.schema.names]))
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        is_large = self._pending_bytes_max is not None and self._pending_bytes >= self._pending_bytes_max
        if is_large or self._pending_rows >= max(PENDING_ROWS_MAX, self.row_count):
            self._fold()

    @property
    def row_count(self) -> int:
        """How many keys are left of what was folded so far."""
        return 0 if self._state is None else int(self._state.num_rows)

    @property
    def size_bytes(self) -> int:
        """How much of the memory these have."""
        return 0 if self._state is None else int(self._state.nbytes)

    def take(self) -> LastChanges | None:
        """What the changes so far leave, None if there were none; the next ones begin anew."""
        if self._pending:
            self._fold()
        state, self._state = self._state, None
        if state is None:
            return None
        return LastChanges(
            state.column(0).combine_chunks(), state.column(1), state.select(list(range(2, state.num_columns)))
        )

    def _fold(self) -> None:
        every = pa.Table.from_batches(self._pending)
        if self._state is not None:
            every = pa.concat_tables([self._state, every])
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        places = numbers_array(np.arange(every.num_rows, dtype=np.int64))
        by_key = pa.table([every.column(0), places], names=[_KEY, _PLACE]).group_by(_KEY)
        chosen = by_key.aggregate([(_PLACE, self._chosen)])
        if chosen.num_rows < every.num_rows:
            every = every.take(numbers_array(np.sort(chosen.column(f"{_PLACE}_{self._chosen}").to_numpy())))
        self._state = every


def numbered_kinds(kinds: pa.Array) -> pa.Array:
    """Numbers of ChangeType for the short texts that changes have as Arrow rows."""
    return pc.index_in(kinds, value_set=_KINDS)
