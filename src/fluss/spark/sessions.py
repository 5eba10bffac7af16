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
HOME = "SPARK_HOME"

# Spark tells of its start on several lines before a program can set the level. The second logger is the one whose level
# Spark copies to the root when a Python program starts it.
# The filter leaves out what Spark says, with pages of Java, about tasks that end because their query was stopped; what
# makes a query fail is said elsewhere, too.
_LOG4J = """\
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.filter.stopped.type = RegexFilter
appender.stderr.filter.stopped.regex = Abort(ing|ed) (task|commit).*|\\
  Data source write .* abort(ing|ed)?[.]|Error in TaskCompletionListener
appender.stderr.filter.stopped.onMatch = DENY
appender.stderr.filter.stopped.onMismatch = NEUTRAL
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
        # A stack for the regular expression that Spark has for the text of errors in foreachBatch: it needs 200 bytes
        # for each of some ten thousand characters.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()} -XX:-UsePerfData -Xss16m",
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
    with _interrupt_deferred(), _light_home(folder / "spark"):
        context = SparkContext.getOrCreate(started)
    _quiet_ends(getattr(context, "_accumulatorServer", None))
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


def _quiet_ends(server: Any) -> None:
    """Spark cuts its connection to this server of its own when a query is stopped; that is not worth a traceback."""
    if server is None or hasattr(server, "is_quiet"):
        return
    handle_error = server.handle_error
    server.is_quiet = True

    def handle_others(*args: Any) -> None:
        if not isinstance(sys.exception(), EOFError):
            handle_error(*args)

    server.handle_error = handle_others


@contextmanager
def _light_home(folder: Path) -> Iterator[None]:
    """Let Spark start with a home that has no zip of its Python package.

    Its workers would import that before the package that is installed, and compile it each time, because a zip keeps no
    bytecode: 0.5 s of a core for each kind of worker and each stream, which may take 10 s until it is heard of.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    if HOME in os.environ or not (home / "jars").is_dir():
        yield  # another Spark than the installed package's
        return
    folder.mkdir()
    for entry in home.iterdir():
        if entry.name != "python":
            (folder / entry.name).symlink_to(entry)
    os.environ[HOME] = str(folder)
    try:
        yield
    finally:
        del os.environ[HOME]


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
