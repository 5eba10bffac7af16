"""Which tables can be tiered, and what the server's settings say of their lake.

Where the lake of a table is, is told along with the table, so clients find the lake of any cluster this way and need no
settings of their own. What a table says itself, which earlier versions let users set, is left out. Secrets of the
settings stay here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Column
from fluss.model.tables import options
from fluss.model.tables.options import DATALAKE_FORMAT, DATALAKE_ICEBERG_PREFIX, ICEBERG, is_iceberg_option
from fluss.model.types import TypeRoot
from fluss.storage.catalog.view import DefinitionCache, lake_freshness_ms

WAREHOUSE_NAME: Final = "lake"
_TYPE: Final = f"{DATALAKE_ICEBERG_PREFIX}type"
_URI: Final = f"{DATALAKE_ICEBERG_PREFIX}uri"
_WAREHOUSE: Final = f"{DATALAKE_ICEBERG_PREFIX}warehouse"
_TYPE_DEFAULT: Final = "sql"
_SECRET_PARTS: Final = ("password", "secret", "key", "token", "credential")
_OF_USERS: Final = DATALAKE_ICEBERG_PREFIX.encode()

_log = logging.getLogger(__name__)


class LakeLocations:
    def __init__(self, configured: Mapping[str, str], data_dir: Path) -> None:
        self._configured = {
            f"{DATALAKE_ICEBERG_PREFIX}{key}": value for key, value in configured.items() if not _is_secret(key)
        }
        self._warehouse = str(data_dir.absolute() / WAREHOUSE_NAME)
        self._completed = DefinitionCache(self._complete)

    def shown_json(self, table_json: bytes) -> bytes:
        """A table as clients see it: one that is tiered says where."""
        if lake_freshness_ms(table_json) is None and _OF_USERS not in table_json:
            return table_json
        return self._completed(table_json)

    def _complete(self, table_json: bytes) -> bytes:
        table = json.loads(table_json)
        stored = _without_lake(table["properties"])
        is_tiered = lake_freshness_ms(table_json) is not None and stored.get(DATALAKE_FORMAT, "").upper() == ICEBERG
        table["properties"] = self._located(stored) if is_tiered else stored
        return json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()

    def _located(self, stored: Mapping[str, str]) -> dict[str, str]:
        properties = {**self._configured, **stored}
        if _URI not in properties:
            properties.setdefault(_TYPE, _TYPE_DEFAULT)
        if properties.get(_TYPE, "").lower() == _TYPE_DEFAULT:
            properties.setdefault(_WAREHOUSE, self._warehouse)
        return properties


def _is_secret(key: str) -> bool:
    return any(part in key.lower() for part in _SECRET_PARTS)


def _without_lake(stored: Mapping[str, str]) -> dict[str, str]:
    foreign = {key: value for key, value in stored.items() if is_iceberg_option(key)}
    if foreign:
        _log.warning(
            "A table has %s, which users of earlier versions could set: it is left out. If the lake is there, set "
            "datalake.iceberg.* in fluss.toml; alter_table resets the property.",
            ", ".join(key if _is_secret(key) else f"{key}={value!r}" for key, value in foreign.items()),
        )
    return {key: value for key, value in stored.items() if key not in foreign}


_TEXT: Final = (TypeRoot.STRING, TypeRoot.CHAR)
_NO_TRANSFORM: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)


def check_lake_keys(descriptor: TableDescriptor) -> None:
    """Raise for a new table that says itself where its lake is."""
    for key in (*descriptor.properties, *descriptor.custom_properties):
        if options.names_lake(key):
            raise InvalidRequestError(
                f"This table can't be made: {options.lake_key_problem(key)}.", ErrorCode.INVALID_CONFIG_EXCEPTION
            )


def check_lake_table(descriptor: TableDescriptor, server_format: str | None) -> None:
    """Raise for a table that is to be tiered and can't be."""
    properties = descriptor.properties
    if not options.is_true(properties, options.DATALAKE_ENABLED):
        return
    table_format = properties.get(options.DATALAKE_FORMAT, "")
    if server_format is not None and table_format.lower() != server_format.lower():
        raise _refused(
            f"{options.DATALAKE_FORMAT} is {table_format}, but the server's datalake.format is {server_format}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    if table_format.upper() != options.ICEBERG:
        raise _refused(
            f"{options.DATALAKE_ENABLED} needs {options.DATALAKE_FORMAT} iceberg, nothing is tiered to "
            f"{table_format or 'no format'}; leave one of the two out",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    columns = {column.name: column for column in descriptor.schema.columns}
    for key in descriptor.partition_keys:
        if columns[key].data_type.root not in _TEXT:
            raise _refused(
                f"the partition key {key!r} of a table that is tiered must be STRING, not {columns[key].data_type}; "
                f"partition by a column of text, or leave {options.DATALAKE_ENABLED} out"
            )
    if descriptor.bucket_keys:
        _check_bucket_key([columns[key] for key in descriptor.bucket_keys])


def _check_bucket_key(keys: list[Column]) -> None:
    from fluss.formats.rows.keys import IcebergKeys

    names = ", ".join(key.name for key in keys)
    if len(keys) > 1:
        raise _refused(
            f"a table that is tiered to Iceberg has one bucket key, not {names}; set bucket.key to one column"
        )
    try:
        IcebergKeys(keys)
        is_known = keys[0].data_type.root not in _NO_TRANSFORM
    except InvalidRequestError:
        is_known = False
    if not is_known:
        raise _refused(
            f"Iceberg has no buckets by {names}, which is {keys[0].data_type}; set bucket.key to a column of another "
            f"type, or leave {options.DATALAKE_ENABLED} out"
        )


def _refused(reason: str, error_code: int = ErrorCode.INVALID_TABLE_EXCEPTION) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be tiered to a lake: {reason}.", error_code)
