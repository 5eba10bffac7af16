"""Options of writes.

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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fluss.spark.source_options import READ_OPTIONS, SourceOptions, bad_option

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
