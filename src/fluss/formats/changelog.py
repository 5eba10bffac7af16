"""What a batch of puts does to a primary-key table: the changes for its log, and what is stored in the end.

Nothing here reads or writes a table. An engine that computes values first turns the values of the batch into the ones
its records leave, and then all of them are folded by the same loop; so would one that aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from itertools import compress
from operator import not_
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.kv_batch import KvRecords
from fluss.formats.nested import view_of
from fluss.formats.values import ValueCodec
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Schema
from fluss.model.types import TypeRoot

_VERSION_TYPES: Final = (TypeRoot.INTEGER, TypeRoot.BIGINT, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_INT32_MIN: Final = -(1 << 31)
_INT64_MIN: Final = -(1 << 63)


class MergeEngine(StrEnum):
    """What becomes of a row when another is put at its key; without an engine it is replaced."""

    FIRST_ROW = "FIRST_ROW"
    VERSIONED = "VERSIONED"


class DeleteBehavior(StrEnum):
    """What a delete does."""

    ALLOW = "ALLOW"
    IGNORE = "IGNORE"
    DISABLE = "DISABLE"


class ChangelogImage(StrEnum):
    """Whether the changelog has rows as they were before an update."""

    FULL = "FULL"
    WAL = "WAL"


@dataclass(frozen=True, slots=True)
class MergeRules:
    """The rules of one table."""

    engine: MergeEngine | None = None
    version_column: str = ""  # of VERSIONED
    delete_behavior: DeleteBehavior | None = None  # None: what is usual for the engine
    image: ChangelogImage = ChangelogImage.FULL

    def __post_init__(self) -> None:
        if self.engine is not None and self.delete_behavior is DeleteBehavior.ALLOW:
            raise InvalidRequestError(
                f"The merge engine {self.engine} has no deletes: set table.delete.behavior to IGNORE or DISABLE.",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )

    @property
    def deletes(self) -> DeleteBehavior:
        usual = DeleteBehavior.ALLOW if self.engine is None else DeleteBehavior.IGNORE
        return self.delete_behavior or usual


class Changes(NamedTuple):
    """What a batch changes; without a change an empty log batch is due.

    `values` are those of the changelog, in order, each with its schema id: `ValueCodec.decode` makes its rows of them.
    """

    change_types: bytes
    values: list[bytes]
    state: dict[bytes, bytes | None]  # what is to be stored at every key that changed; None: nothing


class Folder:
    """Folds batches of puts into changes of one table, by its rules and its schemas so far; has no state."""

    __slots__ = ("_codec", "_rules")

    def __init__(self, rules: MergeRules, codec: ValueCodec) -> None:
        self._rules = rules
        self._codec = codec
        if rules.engine is MergeEngine.VERSIONED:
            check_version_column(codec.schema, rules.version_column)

    def keys_to_read(self, records: KvRecords, target_columns: Sequence[int] = ()) -> list[bytes]:
        """The keys whose stored values `fold` has to know, each once."""
        if self._is_blind(self._targets(target_columns)):
            return list(dict.fromkeys(compress(records.keys, map(not_, records.values))))
        return list(dict.fromkeys(records.keys))

    def fold(self, records: KvRecords, old: dict[bytes, bytes | None], target_columns: Sequence[int] = ()) -> Changes:
        """What the records do, each after those before it. `old`: what is stored; a key that is not there has nothing.

        `target_columns` are the indexes of a partial update; none means that rows are whole.
        """
        targets = self._targets(target_columns)
        records = self._without_deletes(records)
        engine = self._rules.engine
        image = (self._rules.image is ChangelogImage.FULL, not self._is_blind(targets))
        if engine is MergeEngine.VERSIONED:
            folded = kernel.fold_changes(*records, old, *image, False, *self._versions(records, old))
        elif targets is None:
            folded = kernel.fold_changes(*records, old, *image, engine is MergeEngine.FIRST_ROW)
        else:
            merged, remains = self._partial(records, old, targets)
            keys_only = targets == set(self._codec.schema.primary_key_indexes)
            folded = kernel.fold_changes(*merged, old, *image, keys_only, remains=remains)
        change_types, values, state = folded
        return Changes(bytes(change_types), values, state)

    def _is_blind(self, targets: set[int] | None) -> bool:
        """Whether an upsert does not depend on what is there: it is written as an update, be it one or not."""
        rules = self._rules
        numbered = self._codec.schema.get_auto_increment_columns()
        return rules.image is ChangelogImage.WAL and rules.engine is None and targets is None and not numbered

    def _targets(self, target_columns: Sequence[int]) -> set[int] | None:
        """Target columns that are worth a partial update."""
        if not target_columns:
            return None
        if self._rules.engine is not None:
            raise InvalidRequestError(
                f"The merge engine {self._rules.engine} takes whole rows only: write all columns.",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        targets = set(target_columns)
        schema = self._codec.schema
        if targets == set(range(len(schema.columns))):
            return None
        check_target_columns(schema, targets)
        return targets

    def _without_deletes(self, records: KvRecords) -> KvRecords:
        """The records that count; a delete is refused where deletes are disabled."""
        if self._rules.deletes is DeleteBehavior.ALLOW or all(records.values):
            return records
        if self._rules.deletes is DeleteBehavior.DISABLE:
            raise InvalidRequestError(
                "The table takes no deletes: its table.delete.behavior is DISABLE.",
                ErrorCode.DELETION_DISABLED_EXCEPTION,
            )
        return KvRecords(list(compress(records.keys, records.values)), list(filter(None, records.values)))

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

    def _partial(
        self, records: KvRecords, old: dict[bytes, bytes | None], targets: set[int]
    ) -> tuple[KvRecords, dict[bytes, bytes | None]]:
        """Records with whole rows, and what a delete leaves at keys where it does not remove the row.

        Columns that are no target stay what they were before the batch: no record of it can change them, and a row is
        removed only where they are all null. So what a record leaves does not depend on the records before it.
        """
        codec = self._codec
        present = list(compress(old, old.values()))
        stored = codec.decode(list(filter(None, old.values())))
        new = codec.decode(list(filter(None, records.values)))
        place_of = dict(zip(present, range(len(present)), strict=True))
        places = pa.array(map(place_of.get, compress(records.keys, records.values)), pa.int32())
        columns = [
            new.column(i) if i in targets else stored.column(i).take(places) for i in range(len(codec.schema.columns))
        ]
        merged = codec.encode(pa.RecordBatch.from_arrays(columns, schema=codec.arrow_schema), records.values)
        remains = self._remains(present, stored, targets) if not all(records.values) else {}
        return KvRecords(records.keys, merged), remains

    def _remains(self, present: list[bytes], stored: pa.RecordBatch, targets: set[int]) -> dict[bytes, bytes | None]:
        others = [column.is_valid() for i, column in enumerate(stored.columns) if i not in targets]
        kept = reduce(pc.or_, others)
        cleared = targets - set(self._codec.schema.primary_key_indexes)
        columns = [
            pa.nulls(stored.num_rows, column.type) if i in cleared else column
            for i, column in enumerate(stored.columns)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._codec.arrow_schema).filter(kept)
        return dict(zip(compress(present, kept.to_pylist()), self._codec.encode(rows), strict=True))


def check_target_columns(schema: Schema, targets: set[int]) -> None:
    """Refuse a partial update that leaves out the key, or columns that can't be null."""
    columns = schema.columns
    keys = schema.primary_key_indexes
    problem = None
    for index in targets:
        if not 0 <= index < len(columns):
            problem = f"there is no column {index}; the table has {len(columns)}"
    for index in keys:
        if index not in targets:
            problem = f"the key column {columns[index].name!r} must be among the target columns"
    for index, column in enumerate(columns):
        if index not in keys and not column.data_type.nullable:
            problem = f"the column {column.name!r} is NOT NULL, and only key columns may be so"
    if problem is not None:
        raise InvalidRequestError(f"No partial update: {problem}.", ErrorCode.INVALID_TARGET_COLUMN)


def check_version_column(schema: Schema, name: str) -> None:
    """Refuse a version column that does not exist or has no order that all clients agree on."""
    for column in schema.columns:
        if column.name == name:
            if column.data_type.root in _VERSION_TYPES:
                return
            raise _bad_version_column(f"{name!r} is {column.data_type}; use INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ")
    raise _bad_version_column(f"{name!r} is not among the columns {schema.column_names}")


def _bad_version_column(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"The version column {problem}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
