"""Options that are not the data source's: Spark's own, and those that other sources have.

Spark hands over what a program gave, and of its own accord only these, from 4.0 to 4.3 and over Spark Connect alike:

| option | comes with |
|---|---|
| `path` | the argument of `load`, `save` and `start`, which names the table |
| `paths` | a list of several arguments of `load` |
| `checkpointLocation`, `queryName` | streams that are written, `toTable` and declarative pipelines among them |
| `provider`, `owner` and properties of a table | `CREATE TABLE ... USING`, where the source is asked for columns |

Triggers, output modes, save modes, partitioning and the session's settings are not handed over.
"""

from __future__ import annotations

# What a stream that is written is called, and where it keeps its position, are Spark's affair.
STREAM_OPTIONS = ("checkpointLocation", "queryName")
# The property of a table of Spark's catalog that names its data source.
PROVIDER = "provider"

_SESSION_PREFIX = "spark."
_BEGIN = "say where a stream begins by scan.startup.mode, scan.startup.timestamp or scan.start.offsets"
_END = "say where a batch read ends by scan.end.offsets or scan.incremental.end.timestamp"
_LIMIT = "limit micro-batches by maxRowsPerTrigger or maxBytesPerTrigger"
_TABLE = "name the table as database.table, by the option 'table' or as the argument of load(), save() or start()"
_COLUMNS = "a write does not change a table's columns; add them first, as `fluss table alter --add-column` does"
_DAMAGE = "rows that can't be read are never left out"
_ONCE = "a stream (df.writeStream) is stored once with exactly.once=true, a batch write is not"
_ADVICE = {
    "dbtable": _TABLE,
    "endingOffsets": _END,
    "endingTimestamp": _END,
    "endingVersion": _END,
    "failOnDataLoss": "a stream fails when rows that it has not read have expired; to go on with the rest, start it "
    "with a new checkpoint and scan.startup.mode=earliest",
    "ignoreCorruptFiles": _DAMAGE,
    "ignoreMissingFiles": _DAMAGE,
    "maxFilesPerTrigger": _LIMIT,
    "maxOffsetsPerTrigger": _LIMIT,
    "mergeSchema": _COLUMNS,
    "minPartitions": "set scan.maxRecordsPerPartition",
    "mode": "call .mode('append'); what becomes of the rows is said by write.mode",
    "outputMode": "call .outputMode(...)",
    "overwriteSchema": _COLUMNS,
    "partitionBy": "a table has the partition keys that it was created with",
    "partitionOverwriteMode": "a write does not overwrite partitions; drop them first, as `fluss partition drop` does, "
    "then append",
    "paths": "load one table at a time, and combine them by union",
    "readChangeFeed": "set changelog=true",
    "replaceWhere": "a write does not replace rows by a condition; delete them with write.mode=delete, then append",
    "schema": "call .schema(...), or set columns",
    "startingOffsets": _BEGIN,
    "startingTimestamp": _BEGIN,
    "startingVersion": _BEGIN,
    "subscribe": _TABLE,
    "timestampAsOf": _END,
    "topic": _TABLE,
    "trigger": "call .trigger(...)",
    "txnAppId": _ONCE,
    "txnVersion": _ONCE,
    "versionAsOf": _END,
}
_NAMES = {name.lower(): name for name in _ADVICE}
# Values that ask for what happens anyway.
_GRANTED = {
    "failondataloss": "true",
    "ignorecorruptfiles": "false",
    "ignoremissingfiles": "false",
    "mergeschema": "false",
    "overwriteschema": "false",
    "partitionoverwritemode": "static",
    "readchangefeed": "false",
}


def is_granted(key: str, value: str) -> bool:
    """Whether an option of another source asks for what happens here anyway."""
    return _GRANTED.get(key.lower()) == value.strip().lower()


def advice(key: str) -> str | None:
    """Why an option can't be used here, and what to do instead; None if nothing is known of it."""
    if key.startswith(_SESSION_PREFIX):
        return f"{key!r} is a setting of the session: call spark.conf.set({key!r}, ...) or set it where Spark starts."
    name = _NAMES.get(key.lower())
    return None if name is None else f"The option {name!r} can't be used with the data source 'fluss': {_ADVICE[name]}."
