"""Lets Spark find the data source `fluss` by itself.

Spark imports every installed module whose name begins with `pyspark_` and takes its `DefaultSource`. A module that
fails here would break the lookup of all other sources, so this one imports nothing until asked, and when the source
can't be loaded it has none to offer; `fluss.spark.register(spark)` then shows why.
"""

# Small on purpose: Spark loads it whenever it looks up any source.
from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from fluss.spark.source import FlussDataSource
        except Exception as error:
            raise AttributeError(f"the data source 'fluss' can't be loaded: {error}") from error
        return FlussDataSource
    raise AttributeError(f"module 'pyspark_fluss' has no attribute {name!r}")
