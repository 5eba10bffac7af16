"""Jars from Maven, fetched once into a cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

FLUSS_VERSION = "0.9.1-incubating"
_LOG4J_VERSION = "2.25.4"
_LOG4J_GROUP = "org.apache.logging.log4j"

SERVER_ARTIFACTS = (
    f"org.apache.fluss:fluss-server:{FLUSS_VERSION}",
    f"{_LOG4J_GROUP}:log4j-slf4j-impl:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-core:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-api:{_LOG4J_VERSION}",
)
CLIENT_ARTIFACTS = (
    f"org.apache.fluss:fluss-client:{FLUSS_VERSION}",
    f"{_LOG4J_GROUP}:log4j-slf4j-impl:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-core:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-api:{_LOG4J_VERSION}",
)

_FETCH_TIMEOUT_S = 900
_LOCK_TIMEOUT_S = _FETCH_TIMEOUT_S + 60


def cache_dir() -> Path:
    """Where jars and classes are kept: `FLUSS_TEST_CACHE`, or a folder of the user's cache."""
    configured = os.environ.get("FLUSS_TEST_CACHE")
    path = Path(configured) if configured else Path.home() / ".cache" / "flussbett" / "apache-fluss-0.9.1"
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetch_jars(name: str, artifacts: Sequence[str]) -> Path:
    """The directory that holds `artifacts` (`group:artifact:version`) and all they need at run time."""
    pom = _pom(name, artifacts)
    root = cache_dir()
    final = root / f"{name}-{hashlib.sha256(pom.encode()).hexdigest()[:12]}"
    with FileLock(root / f"{name}.lock", timeout=_LOCK_TIMEOUT_S):
        if not final.is_dir():
            _download(pom, root, final)
    return final


def _download(pom: str, root: Path, final: Path) -> None:
    """Fetch into a scratch directory and rename it, so that `final` is complete whenever it exists."""
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("Maven (mvn) is needed to fetch Apache Fluss and is not on the PATH")
    with tempfile.TemporaryDirectory(dir=root, prefix="fetch-") as scratch:
        (Path(scratch) / "pom.xml").write_text(pom)
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not fetch {final.name}:\n{(done.stdout + done.stderr)[-4000:]}")
        (Path(scratch) / "lib").rename(final)


def _pom(name: str, artifacts: Sequence[str]) -> str:
    dependencies = []
    for coordinates in artifacts:
        group, artifact, version = coordinates.split(":")
        dependencies.append(
            f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version></dependency>\n"
        )
    return (
        "<project>\n  <modelVersion>4.0.0</modelVersion>\n"
        f"  <groupId>flussbett.testing</groupId><artifactId>{name}</artifactId><version>1</version>\n"
        "  <packaging>pom</packaging>\n"
        f"  <dependencies>\n{''.join(dependencies)}  </dependencies>\n</project>\n"
    )
