"""The store of a bucket of a primary-key table: a sorted map of bytes that is never ahead of the changelog.

The log is the truth. A store holds the rows as of some changelog offset, its covered offset, and may lose its latest
writes in a crash; then it is as of an earlier offset, and the log is replayed from there. So nothing is written to a
store before the log that it comes from is durable, and a store is never taken for complete: whoever opens one compares
its covered offset with the log (`fluss.storage.kv.recovery`).

All calls block and are made in worker threads. Reads may run beside each other and beside a write; writes are the
caller's to order. No call may run while, or come after, `close`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.storage import files

MEMORY_BYTES: Final = 256 << 20  # of all stores together
MEMORY_BYTES_MIN: Final = 8 << 20
PAGE_ROWS_MAX: Final = 10_000
PAGE_SIZE_BYTES_MAX: Final = 4 << 20


class KvStoreError(FlussError):
    """A store can't do what it was asked to; the message names its bucket."""

    def __init__(self, message: str, error_code: int = ErrorCode.KV_STORAGE_EXCEPTION) -> None:
        super().__init__(message, error_code)


class KvStoreBusyError(KvStoreError):
    """Writes come faster than the disk takes them; nothing of this one was lost or acknowledged."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION)


class DamagedKvStoreError(CorruptDataError):
    """The files of a store fail their checks: it has to be rebuilt from a checkpoint and the log."""

    def __init__(self, message: str, error_code: int = ErrorCode.KV_STORAGE_EXCEPTION) -> None:
        super().__init__(message, error_code)


def as_kv_error(error: Exception) -> Exception:
    """An error that clients can be told: one of the disk gets a code, others stay as they are."""
    if isinstance(error, OSError) and not isinstance(error, FlussError):
        return KvStoreError(f"The rows can't be stored: {files.reason(error)}")
    return error


@dataclass(frozen=True, slots=True)
class KvState:
    """What is known of the rows in a store."""

    covered_offset: int  # the changelog offset to go on from: all before it is in the rows
    row_count: int


EMPTY: Final = KvState(0, 0)


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their keys."""

    keys: list[bytes]
    values: list[bytes]
    next_key: bytes | None  # where to go on; None at the end


class KvSnapshot(Protocol):
    """All rows as of one state, whatever is written meanwhile. It keeps old files and memory alive: close it."""

    @property
    def state(self) -> KvState: ...

    def read(self, rows_max: int = PAGE_ROWS_MAX, size_bytes_max: int = PAGE_SIZE_BYTES_MAX) -> Page:
        """The next rows, at least one if any is left."""

    def close(self) -> None: ...


class ReadableStore(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def state(self) -> KvState: ...

    def get_many(self, keys: list[bytes]) -> list[bytes | None]: ...

    def scan(
        self,
        prefix: bytes = b"",
        from_key: bytes | None = None,
        rows_max: int = PAGE_ROWS_MAX,
        size_bytes_max: int = PAGE_SIZE_BYTES_MAX,
    ) -> Page:
        """Rows whose keys begin with `prefix`, from `from_key` on; as of now, so two pages may differ in time."""


class KvStore(ReadableStore, Protocol):
    def recent(
        self, keys: list[bytes], newer: list[dict[bytes, bytes | None]]
    ) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        """What is at keys as far as that is in memory, and the keys of which it is not, each once; those have None.

        `newer` are rows to be written here, the latest last.
        """

    def write(self, keys: list[bytes], values: list[bytes], deletes: list[bytes], state: KvState) -> None:
        """Put and delete rows, no key twice, and with that cover the log up to the state's offset.

        After a crash the store may have some rows of the batch behind its covered offset, never fewer than it claims.
        Replay sets whole rows, so it ends at the same.
        """

    def snapshot(self) -> KvSnapshot: ...

    def flush(self) -> None:
        """Make all that was written durable, so that it need not be replayed."""

    def checkpoint(self, directory: Path) -> KvState:
        """Make `directory`, a durable copy as of the returned state, by hard links where it can."""

    def size_bytes(self) -> int:
        """On disk, about."""

    def close(self) -> None:
        """Flush and close; snapshots end."""


class NoRows:
    """What reads find in a bucket that was never written."""

    state = EMPTY
    path = Path()

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(
        self,
        prefix: bytes = b"",
        from_key: bytes | None = None,
        rows_max: int = PAGE_ROWS_MAX,
        size_bytes_max: int = PAGE_SIZE_BYTES_MAX,
    ) -> Page:
        return Page([], [], None)


NO_ROWS: Final = NoRows()
