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
SQLITE_ARTIFACT = "org.xerial:sqlite-jdbc:3.50.3.0"
# The lake plugin, Hadoop's classes that it wants beside it, and the driver of its catalog.
LAKE_ARTIFACTS = (
    f"org.apache.fluss:fluss-lake-iceberg:{FLUSS_VERSION}",
    "io.trino.hadoop:hadoop-apache:3.3.5-2",
    SQLITE_ARTIFACT,
)

_FETCH_TIMEOUT_S = 900
_LOCK_TIMEOUT_S = _FETCH_TIMEOUT_S + 60


def cache_dir() -> Path:
    """Where jars and classes are kept: `FLUSS_TEST_CACHE`, or a folder of the user's cache."""
    configured = os.environ.get("FLUSS_TEST_CACHE")
    path = Path(configured) if configured else Path.home() / ".cache" / "flussbett" / "apache-fluss-0.9.1"
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetch_jars(name: str, artifacts: Sequence[str], *, alone: bool = False) -> Path:
    """The directory that holds `artifacts` (`group:artifact:version[:classifier]`) and all they need at run time.

    With `alone`, these jars and no others, for those that bring all they need along.
    """
    pom = _pom(name, _copy_plugin(artifacts) if alone else _dependencies(artifacts))
    root = cache_dir()
    final = root / f"{name}-{hashlib.sha256(pom.encode()).hexdigest()[:12]}"
    if not final.is_dir():
        # One lock for all: Maven's own repository is not made for several at a time.
        with FileLock(root / "maven.lock", timeout=_LOCK_TIMEOUT_S):
            if not final.is_dir():
                _download(pom, "copy" if alone else "copy-dependencies", root, final)
    return final


def _download(pom: str, goal: str, root: Path, final: Path) -> None:
    """Fetch into a scratch directory and rename it, so that `final` is complete whenever it exists."""
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("Maven (mvn) is needed to fetch Apache Fluss and is not on the PATH")
    with tempfile.TemporaryDirectory(dir=root, prefix="fetch-") as scratch:
        (Path(scratch) / "pom.xml").write_text(pom)
        command = [maven, "-q", "-B", f"dependency:{goal}", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not fetch {final.name}:\n{(done.stdout + done.stderr)[-4000:]}")
        (Path(scratch) / "lib").rename(final)


def _dependencies(artifacts: Sequence[str]) -> str:
    items = "".join(f"    <dependency>{_coordinates(artifact)}</dependency>\n" for artifact in artifacts)
    return f"  <dependencies>\n{items}  </dependencies>\n"


def _copy_plugin(artifacts: Sequence[str]) -> str:
    """The poms of such jars are not read: some name a parent that was never published."""
    items = "".join(f"<artifactItem>{_coordinates(artifact)}</artifactItem>\n" for artifact in artifacts)
    return (
        "  <build><plugins><plugin><artifactId>maven-dependency-plugin</artifactId><configuration>\n"
        f"<artifactItems>\n{items}</artifactItems>\n</configuration></plugin></plugins></build>\n"
    )


def _coordinates(artifact: str) -> str:
    names = ("groupId", "artifactId", "version", "classifier")
    return "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, artifact.split(":"), strict=False))


def _pom(name: str, content: str) -> str:
    return (
        "<project>\n  <modelVersion>4.0.0</modelVersion>\n"
        f"  <groupId>flussbett.testing</groupId><artifactId>{name}</artifactId><version>1</version>\n"
        "  <packaging>pom</packaging>\n"
        f"{content}</project>\n"
    )
