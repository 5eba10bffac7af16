"""One fetch: all buckets of a leader in one request, its answer cut into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fluss.client import runtime
from fluss.client.answers import server_error
from fluss.client.batch_reader import BatchReader, Decoded, Part, Piece, Skip
from fluss.client.cursor import Cursor
from fluss.client.fetch_wait import FetchWait
from fluss.client.fetch_wire import BucketAnswer, parse_fetch_response
from fluss.client.fetched import FetchedBatch
from fluss.client.filtering import ScanFilter
from fluss.client.offsets import CLIENT_FOLLOWER_ID, list_offsets
from fluss.doors import clock
from fluss.formats.log_batch import walk
from fluss.model.config import Config
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import ServerNode, TableInfo
from fluss.model.offsets import EARLIEST_OFFSET, OffsetSpec
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

if TYPE_CHECKING:
    from fluss.client.core import ClientCore

# Decoding this much takes less time than handing it to a worker and back.
INLINE_DECODE_BYTES_MAX = 32 << 10

# What a bucket's share of an answer may grow to where few are asked for: each request has its price, and what exceeds
# the processor's caches has another.
BUCKET_BYTES_MAX = 4 << 20


DecodedPiece: TypeAlias = tuple[Piece, FetchedBatch | None]
"""What the reader moves on over, and its rows, if any."""


class Asked(NamedTuple):
    """A request."""

    parts: tuple[bytes]
    projected: bool
    """Whether the server is to leave columns out."""
    wait_ms: int
    at: float


class Fetch(NamedTuple):
    """A request under way."""

    asked: Asked
    answer: asyncio.Future[memoryview]


class Fetcher:
    """Asks, and keeps cursors up to date. Runs on the I/O loop."""

    def __init__(
        self, client: ClientCore, info: TableInfo, reader: BatchReader, scan_filter: ScanFilter | None = None
    ) -> None:
        self._client = client
        self._info = info
        self._reader = reader
        self._filter = scan_filter
        self._pushes_projection = reader.pushed_fields is not None
        self._turn = 0
        self._bucket_bytes: int = client.config.scanner_log_fetch_max_bytes_for_bucket
        self._bucket_bytes_given = Config.scanner_log_fetch_max_bytes_for_bucket.key in client.config.to_dict()
        self._max_bytes: int = client.config.scanner_log_fetch_max_bytes
        self._wait = FetchWait(client.config)
        self.timeout_s = client.request_timeout_s + self._wait.ms / 1000

    async def send(self, node: ServerNode, cursors: list[Cursor], min_bytes: int) -> Fetch:
        """Send a request for the cursors' offsets; the future has the answer's body."""
        connection = await self._client.metadata.tablet(node, self._client.request_timeout_s)
        asked = self.request(cursors, min_bytes)
        return Fetch(asked, connection.send(api_keys.FETCH_LOG, asked.parts, self.timeout_s))

    def request(self, cursors: list[Cursor], min_bytes: int) -> Asked:
        """A request for the cursors' offsets; on any loop."""
        wait_ms = self._wait.ms
        request = pb.FetchLogRequest(
            follower_server_id=CLIENT_FOLLOWER_ID,
            max_bytes=self._max_bytes,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
        )
        projected = self._pushes_projection
        table = request.tables_req.add(table_id=self._info.table_id, projection_pushdown_enabled=projected)
        if projected:
            table.projected_fields.extend(self._reader.pushed_fields or ())
        if self._filter is not None and self._filter.message is not None and self._reader.is_arrow:
            table.filter_predicate.CopyFrom(self._filter.message)
            table.filter_schema_id = self._info.schema_id
        # The first bucket always gets a whole batch; the turn gives every bucket that chance.
        self._turn += 1
        first = self._turn % len(cursors)
        bucket_bytes = self._bucket_bytes_max(len(cursors))
        for cursor in cursors[first:] + cursors[:first]:
            table.buckets_req.add(
                partition_id=cursor.bucket.partition_id,
                bucket_id=cursor.bucket.bucket,
                fetch_offset=cursor.fetch_offset,
                max_fetch_bytes=bucket_bytes,
            )
        return Asked((request.SerializeToString(),), projected, wait_ms, clock.monotonic())

    def _bucket_bytes_max(self, bucket_count: int) -> int:
        if self._bucket_bytes_given:
            return self._bucket_bytes
        return max(self._bucket_bytes, min(self._max_bytes // bucket_count, BUCKET_BYTES_MAX))

    def receive_small(
        self, body: memoryview, asked: Asked, sender: object, cursors: list[Cursor]
    ) -> list[DecodedPiece] | None:
        """What an answer has, decoded at once; None, and cursors are where they were, if there is more to do."""
        if len(body) > INLINE_DECODE_BYTES_MAX:
            return None
        before = [cursor.fetch_offset for cursor in cursors]
        try:
            decoded = self.decode_small(self.receive(body, asked, sender, cursors))
        except Exception:  # it comes again on the I/O loop, which tells it
            decoded = None
        if decoded is None or any(not cursor.wanted or cursor.trouble is not None for cursor in cursors):
            for cursor, fetch_offset in zip(cursors, before, strict=True):
                cursor.fetch_offset, cursor.remote, cursor.error = fetch_offset, None, None
            return None
        return decoded

    def receive(self, body: memoryview, asked: Asked, sender: object, cursors: list[Cursor]) -> list[Piece]:
        """Batches of an answer, cursors moved behind them."""
        by_key = {cursor.key: cursor for cursor in cursors}
        pieces: list[Piece] = []
        for answer in parse_fetch_response(body, sender):
            partition_id = answer.item.partition_id if answer.item.HasField("partition_id") else None
            cursor = by_key.get((partition_id, answer.item.bucket_id))
            if cursor is None or answer.table_id != self._info.table_id:
                continue
            if answer.item.error_code:
                self._failed(cursor, answer, asked.projected)
            elif answer.item.HasField("remote_log_fetch_info"):
                cursor.remote = answer.item.remote_log_fetch_info
            else:
                cursor.trouble = None
                try:
                    self._walk(cursor, answer, asked.projected, pieces)
                except FlussError as error:
                    cursor.error = self.named(cursor, error)
        self._wait.learn(asked.wait_ms, clock.monotonic() - asked.at, has_rows=bool(pieces))
        return pieces

    def _walk(self, cursor: Cursor, answer: BucketAnswer, projected: bool, pieces: list[Piece]) -> None:
        for position, header in walk(answer.records):
            if header.next_offset <= cursor.fetch_offset or cursor.fetched:
                continue
            pieces.append(Part(cursor, answer.records, position, header, projected))
            cursor.fetch_offset = header.next_offset
        end = cursor.fetch_offset
        if answer.item.HasField("filtered_end_offset"):
            end = answer.item.filtered_end_offset
        elif not answer.records and end == EARLIEST_OFFSET and cursor.stop_offset is not None:
            end = cursor.stop_offset  # a bounded read of a log that holds nothing any more
        if end > cursor.fetch_offset:
            pieces.append(Skip(cursor, end))
            cursor.fetch_offset = end

    def _failed(self, cursor: Cursor, answer: BucketAnswer, projected: bool) -> None:
        error = server_error(answer.item.error_code, answer.item.error_message)
        if error.error_code == ErrorCode.INVALID_COLUMN_PROJECTION and projected:
            # Apache Fluss can't project a column that the schema of an older batch lacks: read on without its help.
            self._pushes_projection = False
            return
        # A batch that is corrupt on the server's disk stays so, whatever the code means for writers. An unknown error
        # may pass: Apache Fluss answers so while it moves a segment to remote storage under a reader.
        passing = error.is_retriable or error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        if passing and not isinstance(error, CorruptDataError):
            cursor.in_trouble(self.named(cursor, error), clock.monotonic())
        else:
            cursor.error = self.named(cursor, error)

    def named(self, cursor: Cursor, error: FlussError) -> FlussError:
        """The error, with the place that could not be read."""
        place = f"bucket {cursor.bucket.bucket} of table {self._info.table_path} at offset {cursor.fetch_offset}"
        return type(error)(f"Can't read {place}: {error.message}", error.error_code)

    def decode_small(self, pieces: Sequence[Piece]) -> list[DecodedPiece] | None:
        """Decode at once if that does not take long; a cursor whose batch is bad gets the error."""
        parts = [piece for piece in pieces if isinstance(piece, Part)]
        if sum([part.header.size_bytes for part in parts]) > INLINE_DECODE_BYTES_MAX or self._reader.unknown(parts):
            return None
        return self._good(pieces, self._reader.decode(parts))

    async def decode(self, pieces: Sequence[Piece]) -> list[DecodedPiece]:
        """Decode, beside the loop when there is much; a cursor whose batch is bad gets the error."""
        parts = [piece for piece in pieces if isinstance(piece, Part)]
        try:
            await self._reader.learn(parts)
        except FlussError as error:
            for part in parts:
                part.cursor.error = part.cursor.error or self.named(part.cursor, error)
            return []
        small = self.decode_small(pieces)
        return self._good(pieces, await self._decode_beside(parts)) if small is None else small

    def _good(self, pieces: Sequence[Piece], results: list[Decoded]) -> list[DecodedPiece]:
        decoded = iter(results)
        good: list[DecodedPiece] = []
        for piece in pieces:
            result = next(decoded)[1] if isinstance(piece, Part) else None
            if isinstance(result, FlussError):
                piece.cursor.error = piece.cursor.error or result
            elif piece.cursor.error is None:
                good.append((piece, result))
        return good

    async def _decode_beside(self, parts: list[Part]) -> list[Decoded]:
        """Halves at a time: columns are decoded side by side as well, but never take equally long."""
        half = (len(parts) + 1) // 2
        halves = [group for group in (parts[:half], parts[half:]) if group]
        results = await asyncio.gather(*(runtime.in_worker(self._reader.decode, group) for group in halves))
        return [result for group in results for result in group]

    async def explained(self, cursor: Cursor, error: FlussError) -> FlussError:
        """The error, with the offsets there are when the cursor asked for another."""
        if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
            return error
        timeout_s = self._client.request_timeout_s
        try:
            first, end = [
                (await list_offsets(self._client.metadata, self._info, [cursor.key], spec, timeout_s))[cursor.key]
                for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
            ]
        except FlussError:
            return error
        return InvalidRequestError(
            f"Offset {cursor.fetch_offset} of bucket {cursor.bucket.bucket} of table {self._info.table_path} does not "
            f"exist: the bucket has offsets {first} to {end} (the next row gets {end}). Subscribe again from there.",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )
