"""Options of writes.

| option | meaning |
|---|---|
| `write.mode` | `append`, `upsert` (the default with a primary key), `delete`, `changelog`: apply `_change_type` |
| `target.columns` | a partial update: the columns that are written, comma-separated, the primary key among them |
| `ignore.delete` | `true`: with `changelog`, deletes are left out |
| `exactly.once` | `true`: each micro-batch of a stream is stored once, whatever fails; a Flussbett server is needed |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fluss.spark.source_options import READ_OPTIONS, SourceOptions, bad_option


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

    @classmethod
    def of(cls, options: SourceOptions) -> WriteOptions:
        """Check the options of a write."""
        options.refuse(READ_OPTIONS, "reading")
        return cls(
            mode=_mode(options),
            target_columns=options.names("target.columns"),
            ignore_delete=options.flag("ignore.delete"),
            exactly_once=options.flag("exactly.once"),
        )


def _mode(options: SourceOptions) -> WriteMode | None:
    text = options.own.get("write.mode")
    if text is None:
        return None
    try:
        return WriteMode(text.strip().lower())
    except ValueError:
        raise bad_option(f"The option 'write.mode' is one of {', '.join(WriteMode)}, not {text!r}.") from None
