"""Values that users may have pickled, and what else is pickled at all.

Nothing of the package stores a pickle: positions and checkpoints are JSON, catalogs and lake are tables. What travels
between processes is pickled (`TRAVELS`), and there both ends run the same version. But values are users' own to keep,
so `pickles.json` has one of each kind as it was pickled once, and a test loads them. Rows that were read (`ScanRecord`)
are not among them: they belong to the kernel that is in use, compiled or not.

`python -m tests.unit.packaging.pickles` adds kinds that are new. It changes no pickle that is there.
"""

from __future__ import annotations

import base64
import importlib
import json
import pickle
from pathlib import Path
from typing import Any

import fluss

STORED = Path(__file__).with_name("pickles.json")
PROTOCOL = 4

# Module and class of what is sent to another process, as pickles name it.
TRAVELS = {
    "Spark, driver to planner and task": [
        "fluss.lake.union.plan:LakeSource",
        "fluss.spark.read.parts:LakeBucket",
        "fluss.spark.read.parts:LakeRows",
        "fluss.spark.read.parts:LakeSlice",
        "fluss.spark.read.parts:BucketRange",
        "fluss.spark.read.parts:BucketRowsAt",
        "fluss.spark.read.reader:FlussReader",
        "fluss.spark.source:FlussDataSource",
        "fluss.spark.source_options:SourceOptions",
        "fluss.spark.stream.reader_41:RememberingStreamReader",
        "fluss.spark.stream.reader_42:AskedStreamReader",
        "fluss.spark.write.writer:FlussStreamWriter",
        "fluss.spark.write.plan:WriteMode",
        "fluss.spark.write.plan:WritePlan",
        "fluss.spark.write.writer:FlussWriter",
    ],
    "Spark, task to driver": [
        "fluss.model.staging:StagedTask",
        "fluss.spark.write.writer:RowsStaged",
        "fluss.spark.write.writer:RowsStored",
    ],
    "tiering, driver to task": [
        "fluss.lake.format:EqualityDelete",
        "fluss.lake.format:LakeFile",
        "fluss.lake.parquet:FileTarget",
        "fluss.lake.tiering.task:ChangesPart",
        "fluss.lake.tiering.task:CurrentPart",
        "fluss.lake.tiering.task:LogPart",
        "fluss.lake.tiering.task:RewritePart",
        "fluss.lake.tiering.task:TieredTable",
    ],
    "tiering, task to driver": ["fluss.lake.format:WrittenFile", "fluss.lake.tiering.task:TaskResult"],
}


def samples() -> dict[str, Any]:
    """A value of each kind that users make or are given, and may keep."""
    types = fluss.DataTypes
    schema = (
        fluss.Schema.builder()
        .column("id", types.bigint())
        .column("tags", types.array(types.string()))
        .column("price", types.decimal(10, 2))
        .primary_key(["id"])
        .build()
    )
    path, bucket = fluss.TablePath("shop", "orders"), fluss.TableBucket(7, 2, 3)
    descriptor = fluss.TableDescriptor(schema, bucket_count=2, comment="All", properties={"table.log.ttl": "1 d"})
    spec = fluss.PartitionSpec({"day": "2026-01-31"})
    return {
        "AggFunction": fluss.AggFunction("sum"),
        "ChangeType": fluss.ChangeType.Insert,
        "ChangesPosition": fluss.ChangesPosition.from_json(
            '{"version": 1, "table_id": 7, "snapshot": true, "buckets": [[3, 0, 5, "ff"], [null, 1, null, null]]}'
        ),
        "Column": schema.columns[0],
        "Config": fluss.Config({"bootstrap.servers": "host:9123", "writer.acks": "1"}),
        "ConfigEntry": fluss.ConfigEntry("table.log.ttl", "1 d", "table"),
        "DataField": fluss.DataField("id", types.int()),
        "DataType": types.map(types.string(), types.row([fluss.DataField("at", types.timestamp_ltz(3))])),
        "DatabaseDescriptor": fluss.DatabaseDescriptor("Shop", {"owner": "ada"}),
        "DatabaseInfo": fluss.DatabaseInfo("shop", fluss.DatabaseDescriptor("Shop"), 1, 2),
        "GenericRow": fluss.GenericRow.from_data([1, "a", None]),
        "KvFormat": fluss.KvFormat.COMPACTED,
        "LakeSnapshot": fluss.LakeSnapshot(9, {bucket: 5}),
        "LogFormat": fluss.LogFormat.ARROW,
        "MergeMode": fluss.MergeMode.DEFAULT,
        "OffsetSpec": fluss.OffsetSpec.timestamp(5),
        "PartitionInfo": fluss.PartitionInfo(3, "2026-01-31", spec),
        "PartitionSpec": spec,
        "Positions": fluss.Positions({bucket: 11}),
        "Predicate": fluss.col("id") > 3,
        "PrimaryKey": schema.primary_key,
        "Schema": schema,
        "SchemaInfo": fluss.SchemaInfo(1, schema),
        "ServerNode": fluss.ServerNode(0, "host", 9123, fluss.ServerType.TABLET_SERVER),
        "ServerType": fluss.ServerType.COORDINATOR_SERVER,
        "StagedTask": fluss.StagedTask(0, 1, 2, 3, 4),
        "TableBucket": bucket,
        "TableDescriptor": descriptor,
        "TableInfo": fluss.TableInfo(path, 7, 1, descriptor, 2, 3, 4),
        "TablePath": path,
        "TableStats": fluss.TableStats(10, {0: 4, 1: 6}),
    }


ERRORS = [name for name in fluss.__all__ if name.endswith("Error")]


def stored() -> dict[str, str]:
    """The pickles that are kept, in base64."""
    return dict(json.loads(STORED.read_text(encoding="utf-8"))) if STORED.exists() else {}


def load(text: str) -> Any:
    """What was pickled."""
    return pickle.loads(base64.b64decode(text))


def resolve(place: str) -> Any:
    """The class that `module:name` stands for."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def write() -> None:
    """Pickle the kinds that have no pickle yet."""
    errors = {name: getattr(fluss, name)("gone", 7) for name in ERRORS}
    new = {
        name: base64.b64encode(pickle.dumps(value, PROTOCOL)).decode() for name, value in (samples() | errors).items()
    }
    STORED.write_text(json.dumps({**new, **stored()}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
