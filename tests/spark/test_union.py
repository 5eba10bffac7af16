"""Lake and log in one DataFrame, with Spark itself: batches, SQL by name, and streams that begin with the lake."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fluss.spark import Catalog
from fluss.sync import Schema, TablePath
from tests.spark.conftest import Backend
from tests.spark.union_steps import KEYED, LOG, Unions

pytestmark = pytest.mark.spark


@pytest.fixture
def unions(ours: Backend) -> Unions:
    return Unions(ours.address, ours.connection, TablePath(ours.database, "tiered"))


def test_one_frame_of_lake_and_log(ours: Backend, unions: Unions) -> None:
    unions.create(LOG, bucket_count=2)
    unions.append(0, *[500] * 4)
    unions.tier()
    unions.append(2000, 500)
    frame = ours.load(unions.path)
    assert frame.count() == 2500
    assert frame.selectExpr("count(distinct id)", "max(id)").first() == (2500, 2499)
    assert ours.load(unions.path, **{"lake.mode": "only"}).count() == 2000
    assert ours.load(unions.path, "name STRING", filter="id BETWEEN 1998 AND 2001").count() == 4
    unions.append(2500, 1)
    unions.tier()
    assert frame.count() == 2500  # as it was planned


def test_keys_by_name(ours: Backend, unions: Unions) -> None:
    unions.create(KEYED, bucket_count=2)
    unions.upsert(dict.fromkeys(range(100), "old"))
    unions.tier()
    with Catalog(ours.spark, ours.connection) as catalog:
        name = catalog.attach(str(unions.path))
        unions.upsert(dict.fromkeys(range(90, 110), "new"))
        unions.delete({"id": 0})
        found = ours.spark.sql(f"SELECT name, count(*) FROM {name} GROUP BY name ORDER BY name").collect()
        assert [tuple(row) for row in found] == [("new", 20), ("old", 89)]
        unions.tier()
        unions.upsert({200: "newer"})
        assert ours.spark.table(name).count() == 110
        catalog.detach(str(unions.path))


def test_a_stream_begins_with_the_lake_and_is_restarted(ours: Backend, unions: Unions, tmp_path: Path) -> None:
    unions.create(LOG, bucket_count=2)
    unions.append(0, 300)
    unions.tier()
    unions.append(300, 100)
    copy = ours.create("copied", Schema(pa.schema([("id", pa.int64()), ("name", pa.string())])))

    def run() -> None:
        stream = ours.spark.readStream.format("fluss").option("bootstrap.servers", ours.address).load(str(unions.path))
        query = (
            stream.writeStream.format("fluss")
            .options(**{"bootstrap.servers": ours.address, "table": str(copy)})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert sorted(ours.rows(copy)["id"].to_pylist()) == list(range(400))
    unions.append(400, 100)
    unions.tier()
    # As after a crash before the first micro-batch was through: it runs again, and has the same rows.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    run()
    run()  # before Spark 4.2 the one before ends with what it ran again
    assert sorted(ours.rows(copy)["id"].to_pylist()) == sorted([*range(400), *range(500)])
