"""Requests and answers of lookups, as the wire has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from fluss.client.answers import server_error
from fluss.formats import kernel
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

if TYPE_CHECKING:
    from fluss.client.ask import BucketKey
    from fluss.client.connection import Answered, Connection

ALL_REPLICAS = -1


class LookupKind(Enum):
    """What is asked for each key."""

    ROW = auto()
    ROW_OR_INSERT = auto()
    """The row; where there is none, one with just its key is made first."""
    PREFIX = auto()


class BucketFound(NamedTuple):
    """What a bucket has for each key: a value or None, or a list of values; or why it can't tell."""

    bucket: BucketKey
    entries: list[Any]
    error: FlussError | None


def send(
    connection: Connection,
    kind: LookupKind,
    table_id: int,
    keys: Mapping[BucketKey, Sequence[bytes]],
    timeout_s: float,
    answered: Answered,
) -> None:
    """Ask for keys by bucket; `answered` gets the answer for `read`."""
    request: pb.LookupRequest | pb.PrefixLookupRequest
    if kind is LookupKind.PREFIX:
        request = pb.PrefixLookupRequest(table_id=table_id)
    else:
        request = pb.LookupRequest(table_id=table_id)
        if kind is LookupKind.ROW_OR_INSERT:
            request.insert_if_not_exists = True
            request.acks, request.timeout_ms = ALL_REPLICAS, int(timeout_s * 1000)
    for (partition_id, bucket), asked in keys.items():
        request.buckets_req.add(bucket_id=bucket, partition_id=partition_id, keys=asked)
    parts = (request.SerializeToString(),)
    if kind is LookupKind.PREFIX:
        connection.submit(api_keys.PREFIX_LOOKUP, parts, timeout_s, answered)
    else:
        connection.submit(api_keys.LOOKUP, parts, timeout_s, answered)


def read(kind: LookupKind, body: memoryview, sender: object) -> Iterator[BucketFound]:
    """The buckets of an answer."""
    try:
        buckets = kernel.split_found(body, kind is LookupKind.PREFIX)
    except CorruptDataError as error:
        raise CorruptDataError(
            f"The answer of {sender} is not a valid one to a lookup: {error.message}.", ErrorCode.CORRUPT_MESSAGE
        ) from error
    for partition_id, bucket, error_code, text, entries in buckets:
        failure = server_error(error_code, text.decode(errors="replace")) if error_code else None
        yield BucketFound((partition_id, bucket), entries, failure)
