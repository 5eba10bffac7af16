"""The way from a request to a bucket of a primary-key table."""

# Small on purpose: it loads Arrow, which every connection does without.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.server.tables.rules import table_format
from fluss.storage.store import Storage

if TYPE_CHECKING:
    from fluss.storage.kv.bucket import KvBucket

_NEW_KEYS_VERSION: Final = 1  # of PutKv, Lookup and PrefixLookup


def kv_bucket(storage: Storage, bucket: TableBucket, api_version: int = _NEW_KEYS_VERSION) -> KvBucket:
    """The bucket, whose log is open; see `check_access` for codes."""
    check_access(storage, bucket, api_version)
    return storage.kv.bucket(bucket)


def check_access(storage: Storage, bucket: TableBucket, api_version: int) -> None:
    """Code 20 for a bucket of a log table, 21 for one of a table that is not there.

    Clients of version 0 are refused where they would encode keys in another way.
    """
    entry = storage.catalog.table_by_id(bucket.table_id)
    if entry is None:
        raise FlussError(f"{bucket} does not exist.", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
    table = table_format(entry.table_json)
    if not table.has_primary_key:
        # Said here: the stores take memory that a server of log tables does without.
        raise InvalidRequestError(
            f"{entry.path} is a log table; rows are put and looked up by key in primary-key tables.",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    if table.needs_new_keys and api_version < _NEW_KEYS_VERSION:
        raise InvalidRequestError(
            f"{entry.path} encodes its keys in a way that this client does not know; use a newer client.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
