"""Scans of primary-key tables that are open between requests.

A scanner belongs to the connection that opened it: no other can use it, and it is closed with the connection, or when
nobody has asked for its next rows for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from fluss.doors import randomness
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.server.net.limits import Limits

if TYPE_CHECKING:
    from fluss.storage.kv.store import BucketScan

_ID_BYTES: Final = 16
_EXPIRED_REMEMBERED_MAX: Final = 256  # per connection, to tell why a scanner is gone


class Scanner:
    """One scan of a bucket, between two of its requests."""

    def __init__(self, bucket: TableBucket, scan: BucketScan, rows_left: int | None) -> None:
        self.scanner_id = randomness.token_bytes(_ID_BYTES).hex().encode()
        self.bucket = bucket
        self.scan = scan
        self.rows_left = rows_left  # None: all
        self.call_seq_id = -1  # of the last request; clients count from 0
        self.idle: asyncio.TimerHandle | None = None

    @property
    def at_end(self) -> bool:
        return self.scan.at_end or self.rows_left == 0

    async def read(self, size_bytes_max: int, rows_max: int) -> list[bytes]:
        """The next values; none at the end."""
        if self.rows_left is not None:
            rows_max = min(rows_max, self.rows_left)
        values = await self.scan.read(size_bytes_max, rows_max)
        if self.rows_left is not None:
            self.rows_left -= len(values)
        return values


class ServerScanners:
    """How many scanners are open on a server."""

    def __init__(self) -> None:
        self.count = 0


class ConnectionScanners:
    """The scanners of one connection."""

    def __init__(self, server: ServerScanners, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._scanners: dict[bytes, Scanner] = {}
        self._expired: deque[bytes] = deque(maxlen=_EXPIRED_REMEMBERED_MAX)
        self._closed = False

    def reserve(self) -> None:
        """Make room for a scanner that is to be opened, or code 69 when there are too many."""
        for count, limit, where in (
            (self._server.count, self._limits.scanners_total_max, "server"),
            (len(self._scanners), self._limits.scanners_per_connection_max, "connection"),
        ):
            if count >= limit:
                raise FlussError(
                    f"This {where} has {limit} open scans, which is its limit; end some, or try again later.",
                    ErrorCode.TOO_MANY_SCANNERS,
                )
        self._server.count += 1

    def unreserve(self) -> None:
        """It could not be opened."""
        self._server.count -= 1

    def add(self, scanner: Scanner) -> None:
        """Take a scanner that was reserved for and is in use now."""
        self._scanners[scanner.scanner_id] = scanner

    def take(self, scanner_id: bytes) -> Scanner:
        """The scanner for a request; then `give_back` or `end` it."""
        scanner = self._scanners.get(scanner_id)
        if scanner is None:
            if scanner_id in self._expired:
                raise InvalidRequestError(
                    f"The scan was ended, for nobody went on with it for {self._limits.scanner_idle_ms_max} ms; "
                    "begin a new one.",
                    ErrorCode.SCANNER_EXPIRED,
                )
            raise InvalidRequestError(
                "There is no such scan on this connection; begin a new one.", ErrorCode.UNKNOWN_SCANNER_ID
            )
        if scanner.idle is not None:
            scanner.idle.cancel()
            scanner.idle = None
        return scanner

    def give_back(self, scanner: Scanner) -> None:
        """Keep it for its next request."""
        if self._closed:
            self.end(scanner)
            return
        loop = asyncio.get_running_loop()
        scanner.idle = loop.call_later(self._limits.scanner_idle_ms_max / 1_000, self._expire, scanner)

    def end(self, scanner: Scanner) -> None:
        """Close the scan."""
        if self._scanners.pop(scanner.scanner_id, None) is not None:
            self._server.count -= 1
            if scanner.idle is not None:
                scanner.idle.cancel()
            scanner.scan.close()

    def end_by_id(self, scanner_id: bytes) -> None:
        """Close it, if there is one."""
        if (scanner := self._scanners.get(scanner_id)) is not None:
            self.end(scanner)

    def close(self) -> None:
        """The connection is gone. One in use is closed when it is given back."""
        self._closed = True
        for scanner in list(self._scanners.values()):
            if scanner.idle is not None:
                self.end(scanner)

    def _expire(self, scanner: Scanner) -> None:
        self._expired.append(scanner.scanner_id)
        self.end(scanner)
