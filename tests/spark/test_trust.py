"""A server and a catalog that say more than data to Spark: driver and tasks run, open and dial nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fluss.lake.options import LakeOptions
from fluss.lake.report import Status
from fluss.model.trust import Trust
from fluss.spark.tiering import catalog_settings, may_use, tier
from tests.kit.lake.attack import PATH, attacked, foreign_keys, of_service
from tests.kit.lake.evil import code_keys
from tests.kit.lake.hostile import Listener, hostile_catalog


def test_a_catalog_that_names_code_and_hosts(tmp_path: Path, spark: SparkSession) -> None:
    mark, foreign = tmp_path / "mark", Listener()
    with hostile_catalog(tmp_path / "catalog") as catalog:
        catalog.config = {**code_keys(mark), **foreign_keys(foreign.address)}
        catalog.table_config = {**code_keys(mark), **foreign_keys(foreign.address)}
        with attacked(tmp_path, of_service(catalog)) as attack:
            attack.write(10)
            server = attack.server.bootstrap_servers
            [report] = tier(spark, bootstrap_servers=server, tables=[PATH])
            assert report.status is Status.TIERED, report
            attack.write(1)
            options = {"bootstrap.servers": server, "table": str(PATH)}
            assert spark.read.format("fluss").options(**options).load().count() == 11
    assert not mark.exists()
    foreign.close()
    assert foreign.count == 0


def test_a_server_that_names_another_host(tmp_path: Path, spark: SparkSession) -> None:
    foreign = Listener()
    with attacked(tmp_path, {"type": "rest", "uri": f"http://{foreign.address}"}) as attack:
        attack.write(3)
        attack.register()
        server = attack.server.bootstrap_servers
        [report] = tier(spark, bootstrap_servers=server, tables=[PATH])
        line = f'lake.trusted = "{foreign.address}"'
        assert line in str(report.reason)
        read = spark.read.format("fluss").options(**{"bootstrap.servers": server, "table": str(PATH)})
        with pytest.raises(Exception, match=r"lake\.trusted") as caught:
            read.load().count()
        assert line in str(caught.value)
        assert read.option("lake.mode", "none").load().count() == 3
    foreign.close()
    assert foreign.count == 0


def test_the_jvm_is_told_nothing_else_of_a_server() -> None:
    found = LakeOptions("rest", "/w", "http://127.0.0.1:1", properties={"s3.region": "r"}, is_named_by_server=True)
    settings = catalog_settings(found)
    assert {key.partition("fluss-iceberg-catalog.")[2] for key in settings} == {
        "",
        "type",
        "uri",
        "warehouse",
        "s3.region",
        "cache-enabled",
    }
    # A service tells the JVM which classes to load: that is for services that the user has named.
    assert not may_use(found)
    assert may_use(LakeOptions("rest", "/w", "http://127.0.0.1:1", trust=Trust(listed=("127.0.0.1:1",))))
    assert may_use(LakeOptions("rest", "/w", "http://127.0.0.1:1"))
    assert may_use(LakeOptions("sql", "/w", is_named_by_server=True))
