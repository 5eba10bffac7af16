"""Every program of this folder, in one session."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from tests.spark.everyday import dataframes, formats, joins, queries, sinks, sql, state, streams, types
from tests.spark.everyday.tables import Program, Tables

pytestmark = pytest.mark.spark

SUBJECTS = (streams, joins, state, sinks, queries, dataframes, sql, types, formats)


def _programs(subject: ModuleType) -> list[Program]:
    """The functions of a module, in their order."""
    found = [value for value in vars(subject).values() if inspect.isfunction(value)]
    return [value for value in found if value.__module__ == subject.__name__ and not value.__name__.startswith("_")]


PROGRAMS = [program for subject in SUBJECTS for program in _programs(subject)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Program, spark: SparkSession, tables: Tables) -> None:
    program(spark, tables)
