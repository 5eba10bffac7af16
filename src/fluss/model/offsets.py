"""Offsets and how to ask for them."""

# Small on purpose: pickles that users keep name this module.

from __future__ import annotations

from typing import ClassVar

EARLIEST_OFFSET = -2
"""Start at the oldest row still kept."""

LATEST_OFFSET = -1
"""Start after the newest row; resolved when `subscribe` is called."""


class OffsetSpec:
    """Which offset to look up: the earliest, the latest, or the first at or after a time."""

    __slots__ = ("kind", "timestamp_ms")

    EARLIEST, LATEST, TIMESTAMP = 0, 1, 2  # the protocol's numbers

    # Other spellings of earliest() and latest().
    Earliest: ClassVar[OffsetSpec]
    Latest: ClassVar[OffsetSpec]

    def __init__(self, kind: int, timestamp_ms: int | None = None) -> None:
        self.kind = kind
        self.timestamp_ms = timestamp_ms

    @staticmethod
    def earliest() -> OffsetSpec:
        """The oldest offset still kept."""
        return OffsetSpec(OffsetSpec.EARLIEST)

    @staticmethod
    def latest() -> OffsetSpec:
        """The offset the next row will get."""
        return OffsetSpec(OffsetSpec.LATEST)

    @staticmethod
    def timestamp(ts: int) -> OffsetSpec:
        """The first offset at or after `ts`, in milliseconds since 1970."""
        return OffsetSpec(OffsetSpec.TIMESTAMP, ts)

    @staticmethod
    def Timestamp(ts: int) -> OffsetSpec:  # noqa: N802
        """Same as `timestamp`."""
        return OffsetSpec.timestamp(ts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetSpec):
            return NotImplemented
        return (self.kind, self.timestamp_ms) == (other.kind, other.timestamp_ms)

    def __hash__(self) -> int:
        return hash((self.kind, self.timestamp_ms))

    def __repr__(self) -> str:
        if self.kind == self.TIMESTAMP:
            return f"OffsetSpec.timestamp({self.timestamp_ms})"
        return "OffsetSpec.earliest()" if self.kind == self.EARLIEST else "OffsetSpec.latest()"


OffsetSpec.Earliest = OffsetSpec.earliest()
OffsetSpec.Latest = OffsetSpec.latest()
