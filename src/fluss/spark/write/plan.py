"""Options of writes, and what a write does with a table: settled on the driver, shipped to the tasks.

| option | meaning |
|---|---|
| `write.mode` | `append`, `upsert` (the default with a primary key), `delete`, `changelog`: apply `_change_type` |
| `target.columns` | a partial update: the columns that are written, comma-separated, the primary key among them |
| `ignore.delete` | `true`: with `changelog`, deletes are left out |
| `exactly.once` | `true`: each micro-batch of a stream is stored once, whatever fails; a Flussbett server is needed |
| `write.new.partitions.max` | how many partitions a batch write, or a micro-batch, may create; 100 by default |

Two settings of the client have defaults of their own here: missing partitions are created
(`writer.dynamic-create-partition.enabled`), and rows of tables without a bucket key are spread in slices of batches
(`writer.bucket.no-key-assigner`), because a task often has too few for more than one batch.

What a write does is settled before any row is written. Columns match by name. Rows that are appended or upserted have
all columns of the table, but for one that the server numbers; with `target.columns` they have at least those, and the
table's others keep their values. Rows that are deleted have at least the primary key. Changes have `_change_type`
besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fluss.model.errors import ConnectError, InvalidRequestError
from fluss.model.partitions import NEWER_MAX, PartitionBound
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET
from fluss.spark.columns import check_write_schema
from fluss.spark.source_options import READ_OPTIONS, OpenTable, SourceOptions, bad_option, open_table

if TYPE_CHECKING:
    from fluss.model.infos import TableInfo

NEW_PARTITIONS_MAX = "write.new.partitions.max"
NEW_PARTITIONS_MAX_DEFAULT = 100
CREATE_PARTITIONS = "writer.dynamic-create-partition.enabled"
NO_KEY_ASSIGNER = "writer.bucket.no-key-assigner"
_CLIENT_DEFAULTS = {CREATE_PARTITIONS: "true", NO_KEY_ASSIGNER: "slices"}


class WriteMode(StrEnum):
    """What becomes of a row."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE = "delete"
    CHANGELOG = "changelog"


@dataclass(frozen=True)
class WriteOptions:
    """How rows are written. Plain values only."""

    mode: WriteMode | None
    """None: append to log tables, upsert into primary-key tables"""
    target_columns: tuple[str, ...] | None
    ignore_delete: bool
    exactly_once: bool
    new_partitions_max: int

    @classmethod
    def of(cls, options: SourceOptions) -> WriteOptions:
        """Check the options of a write."""
        options.refuse(READ_OPTIONS, "reading")
        return cls(
            mode=_mode(options),
            target_columns=options.names("target.columns"),
            ignore_delete=options.flag("ignore.delete"),
            exactly_once=options.flag("exactly.once"),
            new_partitions_max=options.count(NEW_PARTITIONS_MAX) or NEW_PARTITIONS_MAX_DEFAULT,
        )


def writing(options: SourceOptions) -> SourceOptions:
    """The options with what the client's settings are for writing, where they were not given."""
    return replace(options, client={**_CLIENT_DEFAULTS, **options.client})


def _mode(options: SourceOptions) -> WriteMode | None:
    text = options.own.get("write.mode")
    if text is None:
        return None
    try:
        return WriteMode(text.strip().lower())
    except ValueError:
        raise bad_option(f"The option 'write.mode' is one of {', '.join(WriteMode)}, not {text!r}.") from None


@dataclass(frozen=True)
class WritePlan:
    """A checked write. Plain values only, because Spark pickles it."""

    options: SourceOptions
    table_id: int
    mode: WriteMode
    columns: tuple[str, ...]
    """The columns of rows that are appended or upserted"""
    keys: tuple[str, ...]
    is_partial: bool
    """`columns` are not all of the table's, or not in its order"""
    ignore_delete: bool
    partition_bound: PartitionBound | None = None
    """None if no partitions are created"""

    @classmethod
    def early(cls, options: SourceOptions, written: Any) -> WritePlan | None:
        """The plan as the driver makes it; None while the server is away.

        Then each task makes the plan, and waits for the server: Spark can stop a task, but not what plans a write.
        """
        try:
            return cls.make(options, written, waits=False)
        except ConnectError as error:
            if not error.is_retriable:
                raise
            return None

    @classmethod
    def make(cls, options: SourceOptions, written: Any, *, waits: bool = True) -> WritePlan:
        """Look at the table, and check the options and a DataFrame's schema against it."""
        with open_table(options, waits=waits) as opened:
            return cls.of(options, opened, written)

    @classmethod
    def of(cls, options: SourceOptions, opened: OpenTable, written: Any) -> WritePlan:
        """Check the options and a DataFrame's schema against the table."""
        options = writing(options)
        chosen, info, table = WriteOptions.of(options), opened.info, opened.table
        if chosen.exactly_once:
            table.check_staged_writes()
        mode = _planned_mode(chosen, info)
        targets = chosen.target_columns
        if targets is not None:
            table.new_upsert(list(targets))  # checks them
        plan = cls(
            options=options,
            table_id=info.table_id,
            mode=mode,
            columns=targets or _written_columns(info),
            keys=tuple(info.primary_keys),
            is_partial=targets is not None,
            ignore_delete=chosen.ignore_delete,
            partition_bound=_partition_bound(options, chosen, mode, opened),
        )
        plan._check(info, written)
        return plan

    @property
    def targets(self) -> list[str] | None:
        """The columns of a partial update."""
        return list(self.columns) if self.is_partial else None

    def _check(self, info: TableInfo, written: Any) -> None:
        needed = self.keys if self.mode is WriteMode.DELETE else self.columns
        ignored: set[str] = set()
        if self.is_partial or self.mode is WriteMode.DELETE:
            ignored |= set(info.schema.column_names)
        if self.mode is WriteMode.CHANGELOG:
            needed, ignored = (CHANGE_TYPE, *needed), ignored | {COMMIT_TIMESTAMP, LOG_OFFSET}
        check_write_schema(info.table_path, info.schema, written, needed, ignored)

    @contextmanager
    def open(self) -> Iterator[OpenTable]:
        """The table, in a task; it must be the one that was checked."""
        with open_table(self.options) as opened:
            info = opened.info
            if info.table_id != self.table_id:
                raise InvalidRequestError(f"{info.table_path} was dropped and created again during the write.")
            yield opened


def _planned_mode(chosen: WriteOptions, info: TableInfo) -> WriteMode:
    has_key = info.has_primary_key()
    mode = chosen.mode or (WriteMode.UPSERT if has_key else WriteMode.APPEND)
    if has_key and mode is WriteMode.APPEND:
        raise bad_option(f"{info.table_path} has a primary key, so rows are upserted: leave 'write.mode' out.")
    if not has_key and mode is not WriteMode.APPEND:
        raise bad_option(f"{info.table_path} has no primary key: rows can only be appended; leave 'write.mode' out.")
    if not has_key and chosen.target_columns is not None:
        raise bad_option(f"{info.table_path} has no primary key: 'target.columns' is for updates of rows by key.")
    if chosen.ignore_delete and mode is not WriteMode.CHANGELOG:
        raise bad_option("The option 'ignore.delete' is for .option('write.mode', 'changelog').")
    return mode


def _partition_bound(
    options: SourceOptions, chosen: WriteOptions, mode: WriteMode, opened: OpenTable
) -> PartitionBound | None:
    if not opened.info.is_partitioned() or mode is WriteMode.DELETE:
        return None
    if not options.config().writer_dynamic_create_partition_enabled:
        return None
    infos = opened.connection.get_admin().list_partition_infos(opened.info.table_path)
    newest = max((info.partition_id for info in infos), default=-1)
    return PartitionBound(newest, min(chosen.new_partitions_max, NEWER_MAX))


def _written_columns(info: TableInfo) -> tuple[str, ...]:
    numbered = info.schema.get_auto_increment_columns()
    return tuple(name for name in info.schema.column_names if name not in numbered)
