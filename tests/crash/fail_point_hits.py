"""How often a server hits each fail point: which hits are tried, part by part."""

from __future__ import annotations

from typing import Final

from fluss.storage.failpoints import Site

# Each is surely hit so often in a backup of so much.
BACKUP_HITS: Final[dict[Site, int]] = {Site.BACKUP_HOLD: 3, Site.BACKUP_COPY: 3, Site.BACKUP_FINISH: 2}


LAKE_ROUNDS: Final = 6
# How often each site is sure to be hit by the rounds, at every one of its steps.
LAKE_HITS: Final[dict[Site, int]] = {
    Site.LAKE_DIRECTORY: 1,
    Site.LAKE_REPLACE: LAKE_ROUNDS,
    Site.LAKE_REMOVE: LAKE_ROUNDS - 1,
}


# How often each site is sure to be hit by the stream, at every one of its steps.
STAGING_HITS: Final[dict[Site, int]] = {
    Site.STAGING_DIRECTORY: 3,
    Site.STAGING_REPLACE: 40,
    Site.STAGING_REMOVE: 40,
}


# How often each site is sure to be hit, at every one of its steps.
LOG_HITS: dict[Site, int] = {
    Site.DIRECTORY_CREATE: 1,
    Site.FORMAT_REPLACE: 1,
    Site.LOCK_PID: 1,
    Site.MARKS_CREATE: 1,
    Site.MARKS_WRITE: 2,  # syncs of a start: the catalog is settled
    Site.CATALOG_CREATE: 1,
    Site.CATALOG_COMMIT: 11,  # schema, database, five tables made, one dropped and one altered, partitions
    Site.BUCKET_DIRECTORY: 3,
    Site.SEGMENT_CREATE: 12,
    Site.SEGMENT_APPEND: 200,
    Site.SEGMENT_COMMIT: 20,
    Site.SEGMENT_NAME: 3,
    Site.SEGMENT_SEAL: 3,
    Site.SEGMENT_RECOVER: 2,
    Site.SEGMENT_CUT: 2,
    Site.SEGMENT_REMOVE: 1,
    Site.INDEX_REPLACE: 8,
    Site.WRITERS_REPLACE: 8,
    Site.TABLE_REMOVE: 2,
    Site.PARTITION_REMOVE: 2,
}
LOG_SITES = tuple(LOG_HITS)
DEATH_S_MAX = 30.0
