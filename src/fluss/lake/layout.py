"""Names that every reader and writer of a tiered table agrees on; they are Apache Fluss's."""

from __future__ import annotations

from typing import Final

# Columns behind the table's own.
BUCKET: Final = "__bucket"
OFFSET: Final = "__offset"
TIMESTAMP: Final = "__timestamp"
SYSTEM_COLUMNS: Final = (BUCKET, OFFSET, TIMESTAMP)

# Properties of a snapshot that tiering made: by whom, and where its offsets are written down.
COMMIT_USER: Final = "commit-user"
TIERING_USER: Final = "__fluss_lake_tiering"
OFFSETS_PATH: Final = "fluss-offsets"

# A row that comes from a table's current rows and not from its changelog has no offset of its own.
NO_OFFSET: Final = -1

CATALOG_NAME: Final = "fluss-iceberg-catalog"
# Properties of a Fluss table that say where its lake is; a server adds its own to those of the table.
LAKE_PROPERTIES: Final = "table.datalake.iceberg."
