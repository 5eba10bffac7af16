"""What the peers need, made once: `python -m tests.peers.environments pyfluss kafka s3 spark43 java`.

`pyfluss`, `kafka`, `s3` and the `spark4…` are virtual environments, `java` the jars of Apache Fluss and Iceberg and the
compiled driver. Tests make what they need on first use; doing it before keeps downloads out of their time limits.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from fluss.testing.apache import LAKE_ARTIFACTS, SERVER_ARTIFACTS, fetch_jars

_ROOT = Path(__file__).parents[2]
_PEERS = _ROOT / ".peers"
_INSTALL_TIMEOUT_S = 900


def pyfluss_python() -> Path:
    """The interpreter of the environment that `requirements-pyfluss.lock` describes; made on first use."""
    return _environment("pyfluss", _ROOT / "requirements-pyfluss.lock")


def kafka_python() -> Path:
    """An interpreter with clients of Kafka, another peer of the benchmark."""
    return _environment("kafka", _ROOT / "requirements-kafka.lock")


def s3_python() -> Path:
    """An interpreter with a server that speaks S3."""
    return _environment("s3", _ROOT / "requirements-s3.lock")


def spark_python(name: str) -> Path:
    """An interpreter with another version of Spark and this tree's package: `-m pytest tests/spark` works there."""
    python = _environment(name, _ROOT / f"requirements-{name}.lock")
    # Not installed, so that nothing is built in the tree while tests run from it.
    packages = next(python.parents[1].glob("lib/*/site-packages"))
    (packages / "flussbett.pth").write_text(f"{_ROOT / 'src'}\n")
    return python


def pyfluss_stub() -> Path:
    """The type stubs that come with pyfluss."""
    return next(pyfluss_python().parents[1].glob("lib/*/site-packages/fluss/__init__.pyi"))


def _environment(name: str, requirements: Path) -> Path:
    folder = _PEERS / name
    python = folder / "bin" / "python"
    # Written last, with what it was made from: a half-made or outdated environment is made again.
    marker = folder / "complete"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    _PEERS.mkdir(exist_ok=True)
    with FileLock(_PEERS / f"{name}.lock", timeout=_INSTALL_TIMEOUT_S + 60):
        if not marker.exists() or marker.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run(
                [*install, "--require-hashes", "-r", str(requirements)], check=True, timeout=_INSTALL_TIMEOUT_S
            )
            marker.write_text(wanted)
    return python


def _jars_and_driver() -> Path:
    # Here, because making the pyfluss environment must not need what the Java client needs.
    from tests.peers.icebergspark import iceberg_jars
    from tests.peers.javaclient import compiled_driver
    from tests.peers.restcatalog import rest_jars

    fetch_jars("server", SERVER_ARTIFACTS)
    fetch_jars("lake", LAKE_ARTIFACTS, alone=True)
    iceberg_jars()
    rest_jars()
    return compiled_driver()


_MAKERS: dict[str, Callable[[], Path]] = {
    "pyfluss": pyfluss_python,
    "kafka": kafka_python,
    "s3": s3_python,
    **{name: functools.partial(spark_python, name) for name in ("spark40", "spark42", "spark43")},
    "java": _jars_and_driver,
}

if __name__ == "__main__":
    if not sys.argv[1:] or not set(sys.argv[1:]) <= _MAKERS.keys():
        sys.exit(f"usage: python -m tests.peers.environments {' | '.join(_MAKERS)} ...")
    for name in sys.argv[1:]:
        print(_MAKERS[name]())
