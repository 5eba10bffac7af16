"""The part of a put that runs in threads: records become changes and a log batch, and later rows of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.formats import kernel
from fluss.formats.batches.kv_batch import KvRecords, decode_records, parse_header
from fluss.formats.batches.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID
from fluss.formats.changelog.aggregation import CHANGES_SIZE_MAX_BYTES, too_large
from fluss.formats.changelog.fold import Numbering
from fluss.model.errors import CorruptDataError, ErrorCode, InvalidRequestError
from fluss.storage import files
from fluss.storage.kv.recovery import row_count_change, write
from fluss.storage.kv.store import KvState, KvStore, KvStoreError, read_in_parts
from fluss.storage.kv.table import KvTable
from fluss.storage.log.group_commit import Durable

Rows: TypeAlias = dict[bytes, bytes | None]

# A batch has to fit into the answer to one fetch, or nobody could read on behind it; a frame has 100 MiB at most.
LOG_BATCH_BYTES_MAX: Final = 96 << 20


class EndOffset(asyncio.Future[int]):
    """The offset behind a put's changes. It refuses `cancel`, as the future of a sync does."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False

    def complete(self, end_offset: int) -> None:
        if not self.done():
            self.set_result(end_offset)

    def fail(self, error: BaseException) -> None:
        if not self.done():
            self.set_exception(error)
            # Nobody need be waiting: mark it as seen, or asyncio complains.
            self.exception()


@dataclass(frozen=True, slots=True)
class PutRequest:
    """What is to be put."""

    records: Callable[[KvTable], KvRecords]
    record_count: int
    size_bytes: int
    schema_id: int | None = None  # None: the newest
    writer_id: int = NO_WRITER_ID
    batch_sequence: int = NO_BATCH_SEQUENCE
    target_columns: Sequence[int] = ()
    overwrite: bool = False
    missing_only: bool = False  # leave out records with keys that have a row


class Put:
    """A put under way: `appended` when the log has its changes, `applied` when they are durable and can be read."""

    __slots__ = ("appended", "applied", "base_offset", "durable", "end_offset", "prepared", "request", "size_bytes")

    def __init__(self, request: PutRequest | None, size_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.appended = EndOffset(loop=loop)
        self.applied = EndOffset(loop=loop)
        self.request = request  # until it is prepared
        self.size_bytes = size_bytes
        self.prepared = NOTHING
        self.durable: Durable | None = None
        self.base_offset = self.end_offset = -1

    def fail(self, error: BaseException) -> None:
        self.appended.fail(error)
        self.applied.fail(error)


class Prepared(NamedTuple):
    """What a put changes."""

    rows: Rows
    row_count_change: int
    size_bytes: int  # of the rows


NOTHING: Final = Prepared({}, 0, 0)


def prepare(
    request: PutRequest,
    table: KvTable,
    overlay: list[Rows],
    store: KvStore,
    number: Numbering,
) -> tuple[Prepared, bytearray | None]:
    """Fold the records into what is there: the changes, and their log batch; raises for what can't be accepted.

    There is no batch when rows were to be made where none are, and all are there by now.
    """
    with _refusing():
        records = request.records(table)
        folder = table.folder
        targets, overwrite = request.target_columns, request.overwrite
        if request.missing_only:
            targets = table.codec.schema.primary_key_indexes
        keys = records.keys if request.missing_only else folder.keys_to_read(records, targets, overwrite=overwrite)
        old = _stored(keys, overlay, store)
        if request.missing_only:
            missing = list(map(not_, map(old.get, records.keys)))
            if not any(missing):
                return NOTHING, None
            records = KvRecords(list(compress(records.keys, missing)), list(compress(records.values, missing)))
        changes = folder.fold(records, old, targets, overwrite=overwrite, number=number)
        batch = table.log_batch(changes, request.writer_id, request.batch_sequence)
        if len(batch) > LOG_BATCH_BYTES_MAX:
            raise too_large(f"{len(batch)} bytes in the log", LOG_BATCH_BYTES_MAX)
    size_bytes = sum(map(len, filter(None, changes.state.values())))
    return Prepared(changes.state, row_count_change(changes.change_types), size_bytes), batch


def check(batch: memoryview, table: KvTable, target_columns: Sequence[int], *, overwrite: bool) -> None:
    """Raise for a batch that can't be put, whatever rows there are."""
    header = parse_header(batch)
    check_schema(header.schema_id, table)
    with _refusing():
        records = decode_records(batch, header)
        table.check_keys(table.folder.fold(records, {}, target_columns, overwrite=overwrite, number=range))


def check_schema(schema_id: int | None, table: KvTable) -> None:
    if schema_id is not None and not table.has_schema(schema_id):
        # Not SCHEMA_NOT_EXIST, which clients answer by sending the batch again, for ever.
        raise InvalidRequestError(
            f"The batch was written with schema id {schema_id}, which this table does not have; "
            "load the table's metadata again.",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )


@contextmanager
def _refusing() -> Iterator[None]:
    """The checksum holds, so the same would come again for ever: a code that clients raise on."""
    try:
        yield
    except CorruptDataError as error:
        if error.error_code != ErrorCode.CORRUPT_RECORD_EXCEPTION:
            raise
        raise InvalidRequestError(
            f"The batch can't be accepted: {error.message}.", ErrorCode.UNSUPPORTED_VERSION
        ) from error


def _stored(keys: list[bytes], overlay: list[Rows], store: KvStore) -> Rows:
    """What there is at keys. The overlay is looked at first: what leaves it has come to the store before."""
    if sum(map(len, overlay)) < len(keys) * (len(overlay) - 1):
        # Many small puts are not applied yet: to look into each for every key would take longer.
        overlay = [_merged(overlay)]
    old, unknown = store.recent(keys, overlay)
    unknown = kernel.keys_in_order(unknown)  # Neighbours share blocks.
    old.update(zip(unknown, read_in_parts(store, unknown, CHANGES_SIZE_MAX_BYTES), strict=True))
    return old


def apply(puts: Sequence[Put], store: KvStore) -> None:
    """Write the changes of puts that are durable in the log, in their order, at once."""
    offset, row_count = store.state.covered_offset, store.state.row_count
    parts: list[Rows] = []
    for put in puts:
        if put.end_offset <= offset:
            continue  # Replayed from the log when the store was opened, or a repeated put.
        if put.base_offset != offset:
            raise KvStoreError(
                f"{files.shown(store.path)}: the store ends at {offset}, the next changes begin at {put.base_offset}."
            )
        parts.append(put.prepared.rows)
        offset = put.end_offset
        row_count += put.prepared.row_count_change
    if offset > store.state.covered_offset:
        write(store, _merged(parts), KvState(offset, row_count))


def _merged(parts: list[Rows]) -> Rows:
    """What the later parts leave of the earlier ones; a single part, as there mostly is, needs no copy."""
    if len(parts) == 1:
        return parts[0]
    rows: Rows = {}
    for part in parts:
        rows.update(part)
    return rows
