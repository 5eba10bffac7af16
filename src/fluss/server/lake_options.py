"""Where the lake of a table is: what the server's settings say of the catalog, told along with the table.

Clients find the lake of any cluster this way, and need no settings of their own. What a table says itself wins. Secrets
of the settings stay here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from fluss.model.table_options import DATALAKE_FORMAT, DATALAKE_ICEBERG_PREFIX, ICEBERG
from fluss.storage.catalog_view import lake_freshness_ms

WAREHOUSE_NAME: Final = "lake"
_TYPE: Final = f"{DATALAKE_ICEBERG_PREFIX}type"
_URI: Final = f"{DATALAKE_ICEBERG_PREFIX}uri"
_WAREHOUSE: Final = f"{DATALAKE_ICEBERG_PREFIX}warehouse"
_TYPE_DEFAULT: Final = "sql"
_SECRET_PARTS: Final = ("password", "secret", "key", "token", "credential")
_TABLES_CACHED: Final = 4_096


class LakeOptions:
    def __init__(self, configured: Mapping[str, str], data_dir: Path) -> None:
        self._configured = {
            f"{DATALAKE_ICEBERG_PREFIX}{key}": value
            for key, value in configured.items()
            if not any(part in key.lower() for part in _SECRET_PARTS)
        }
        self._warehouse = str(data_dir.absolute() / WAREHOUSE_NAME)
        self._completed = lru_cache(_TABLES_CACHED)(self._complete)

    def shown_json(self, table_json: bytes) -> bytes:
        """A table as clients see it: one that is tiered says where."""
        return table_json if lake_freshness_ms(table_json) is None else self._completed(table_json)

    def _complete(self, table_json: bytes) -> bytes:
        table = json.loads(table_json)
        properties = {**self._configured, **table["properties"]}
        if properties.get(DATALAKE_FORMAT, "").upper() != ICEBERG:
            return table_json
        if _URI not in properties:
            properties.setdefault(_TYPE, _TYPE_DEFAULT)
        if properties.get(_TYPE, "").lower() == _TYPE_DEFAULT:
            properties.setdefault(_WAREHOUSE, self._warehouse)
        table["properties"] = properties
        return json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
