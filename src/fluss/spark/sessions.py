"""A Spark session on this machine, for demos, notebooks and tests. The data source works in any session."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss.spark.source_options import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"

# Spark tells of its start on several lines before a program can set the level. The second logger is the one whose level
# Spark copies to the root when a Python program starts it.
_LOG4J = """\
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


def session(app_name: str = "fluss", cores: int = 2, **conf: Any) -> SparkSession:
    """A quiet session: loopback only, no web page, no progress bar, errors only, files in a temporary directory.

    `conf` has further settings of Spark, and those that are to differ from the ones here; they count when Spark starts,
    so stop an earlier session first. Sets PYSPARK_PYTHON for this process: Spark would otherwise run tasks with the
    PATH's `python3`, which need not have this package. Ctrl-C takes effect when Spark has started. Stop the session by
    `stop()` or by using it in a `with` statement.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # The JVM reads both when it starts: one for tasks, the other (if set) for looking data sources up.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = Path(tempfile.mkdtemp(prefix="fluss-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    settings = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()} -XX:-UsePerfData",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timeType.enabled": "true",
        # The default of 200 is for clusters; on one machine it is 200 tasks of nothing.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{key: text_of(value) for key, value in conf.items()},
    }
    started = SparkConf().setMaster(f"local[{cores}]").setAppName(app_name).setAll(list(settings.items()))
    with _interrupt_deferred():
        SparkContext.getOrCreate(started)
    spark = SparkSession.builder.config(conf=started).getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register the data source `fluss` in a session, for where Spark's own lookup does not see this package."""
    from pyspark.errors import AnalysisException

    from fluss.spark.source import FlussDataSource

    try:
        spark.dataSource.register(FlussDataSource)
    except AnalysisException as error:
        # Spark 4.0 does not take a source again that its own lookup has found.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Keep Ctrl-C for the end, and put its handler back.

    A JVM whose launch is interrupted stays behind as an orphan. And the handler that Spark installs talks to the JVM,
    which fails with pages of output if a call is under way already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs signal handlers in the main thread only, and Spark then installs none
        return
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        signal.raise_signal(signal.SIGINT)
