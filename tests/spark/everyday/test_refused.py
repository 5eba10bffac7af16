"""Every program that Spark refuses: it fails with the error that docs/spark.md names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.everyday.refused import ERRORS
from tests.spark.everyday.tables import Program, Tables

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


@pytest.mark.parametrize("program", ERRORS, ids=lambda program: program.__name__)
def test_error(program: Program, spark: SparkSession, tables: Tables) -> None:
    with pytest.raises(PySparkException, match=re.escape(ERRORS[program])):
        program(spark, tables)


def test_every_error_is_documented() -> None:
    documented = DOCUMENT.read_text()
    assert [error for error in ERRORS.values() if f"`{error}`" not in documented] == []
