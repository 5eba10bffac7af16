"""The module through which Spark finds the source."""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql.datasource import DataSource

import pyspark_fluss
from fluss.spark.source import FlussDataSource

# None in sys.modules makes an import fail as if the package were not installed.
_WITHOUT_PYSPARK = (
    "import sys; sys.modules['pyspark'] = None; import pyspark_fluss; print(hasattr(pyspark_fluss, 'DefaultSource'))"
)
_MODULES_LOADED = "import sys, pyspark_fluss; print(sorted({'pyarrow', 'pyspark', 'fluss'} & set(sys.modules)))"
# What PySpark 4.0 has in the module; `make test-spark-smoke` runs the real one.
_OF_SPARK_40 = (
    "DataSource DataSourceReader DataSourceStreamReader SimpleDataSourceStreamReader DataSourceWriter "
    "DataSourceArrowWriter DataSourceStreamWriter DataSourceRegistration InputPartition WriterCommitMessage"
)
_WITH_SPARK_40 = f"""
from pyspark.sql import datasource
for name in set(datasource.__all__) - set({_OF_SPARK_40!r}.split()):
    delattr(datasource, name)
import fluss.spark, fluss.spark.catalog, fluss.spark.read.reader, fluss.spark.stream.reader_41, fluss.spark.write.writer
print(fluss.spark.write.writer.FlussWriter.__name__)
"""
_LOADED_BY_LOOKUP = "import sys, pyspark_fluss; pyspark_fluss.DefaultSource; print('fluss.client' in sys.modules)"


def _run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_default_source_is_the_source() -> None:
    assert pyspark_fluss.DefaultSource is FlussDataSource
    assert issubclass(FlussDataSource, DataSource)
    assert FlussDataSource.name() == "fluss"


def test_importing_it_loads_nothing() -> None:
    assert _run(_MODULES_LOADED) == "[]"


def test_lookup_does_not_load_the_client() -> None:
    assert _run(_LOADED_BY_LOOKUP) == "False"


def test_without_spark_it_offers_nothing_and_does_not_fail() -> None:
    assert _run(_WITHOUT_PYSPARK) == "False"


def test_spark_40_has_fewer_names() -> None:
    assert _run(_WITH_SPARK_40) == "FlussWriter"
