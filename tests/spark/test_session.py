"""The session for one machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from fluss.spark.sessions import LOOPBACK

pytestmark = pytest.mark.spark

_TWO_SESSIONS = """
import json, os
import fluss.spark
with fluss.spark.session(cores=1, **{"spark.sql.shuffle.partitions": 7, "spark.sql.ansi.enabled": False}) as spark:
    conf = spark.sparkContext.getConf()
    print(json.dumps([conf.get("spark.app.name"), spark.sparkContext.defaultParallelism]))
    print(json.dumps([spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.ansi.enabled")]))
with fluss.spark.session("again") as spark:
    conf = spark.sparkContext.getConf()
    print(json.dumps([conf.get("spark.app.name"), spark.conf.get("spark.sql.shuffle.partitions")]))
print(json.dumps(spark.sparkContext._jsc is None))
"""


def test_everything_is_set(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == LOOPBACK
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.timeType.enabled") == "true"

    def interpreter(_: object) -> str:
        import sys

        import fluss.spark

        return sys.executable if fluss.spark else ""

    assert spark.sparkContext.parallelize([0], 1).map(interpreter).collect() == [sys.executable]


def test_settings_names_and_one_after_the_other() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_SESSIONS], check=True, capture_output=True, text=True)
    first, settings, second, stopped = map(json.loads, done.stdout.splitlines())
    assert first == ["fluss", 1]
    assert settings == ["7", "false"]
    assert second == ["again", "2"]
    assert stopped is True
    assert [line for line in done.stderr.splitlines() if "incubator" not in line] == []
