"""Names that every reader and writer of a tiered table agrees on; they are Apache Fluss's."""

from __future__ import annotations

import re
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

# The file with a snapshot's offsets is in a folder with the id of its table: of this server's, of Apache Fluss's.
_OFFSETS_FOLDERS: Final = (re.compile(r"/(\d+)/lake-offsets/[^/]+$"), re.compile(r"-(\d+)/metadata/[^/]+$"))


def table_id_of(offsets_path: str | None) -> int | None:
    """The id of the table that a file of offsets is of; None where its path does not tell."""
    found = next(filter(None, (folder.search(offsets_path or "") for folder in _OFFSETS_FOLDERS)), None)
    return None if found is None else int(found[1])
