"""What a reader has to know about the machine and the versions; nothing that names the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.corners import KAFKA_CLIENTS, Corner
from benchmarks.kafka_broker import KAFKA_VERSION
from fluss.formats.kernel import COMPILED
from fluss.testing.apache import FLUSS_VERSION

_ROOT = Path(__file__).parents[1]
_SYNC_PROBES = 50


def describe(folder: Path, corners: Sequence[Corner] = ()) -> dict[str, str]:
    """Versions, cores, kernels, and how long this disk takes for one sync in `folder`."""
    facts = {
        "Flussbett": f"{importlib.metadata.version('flussbett')}, kernels {'compiled' if COMPILED else 'not compiled'}",
    }
    if any(corner.client == "pyfluss" for corner in corners):
        versions = (_locked("pyfluss", package) for package in ("pyfluss", "pyarrow"))
        facts["pyfluss, its pyarrow"] = ", ".join(versions)
    if any(corner.server == "apache" for corner in corners):
        facts["Apache Fluss"] = f"{FLUSS_VERSION} on Java {_java_version()}"
    if any(corner.is_kafka for corner in corners):
        facts["Kafka"] = f"{KAFKA_VERSION} on Java {_java_version()}"
        facts["aiokafka, confluent-kafka"] = ", ".join(_locked("kafka", package) for package in KAFKA_CLIENTS)
    return facts | {
        "Python, pyarrow": f"{platform.python_version()}, {importlib.metadata.version('pyarrow')}",
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "Memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "System": f"{platform.system()} {platform.machine()}",
        "One write and fdatasync on this disk": f"{sync_ms(folder):.2f} ms median",
        "Other load during the run": f"load average {os.getloadavg()[0]:.1f} at the start",
    }


def sync_ms(folder: Path) -> float:
    """Median time of a 4 KiB append and its sync: the floor under every durable acknowledgement."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNC_PROBES):
            start = time.monotonic()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - start)
    return median(times) * 1e3


def _locked(environment: str, package: str) -> str:
    requirements = (_ROOT / f"requirements-{environment}.lock").read_text()
    match = re.search(rf"^{package}==(\S+)$", requirements, re.MULTILINE)
    return match[1] if match else "unknown"


def _processor() -> str:
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else "unknown"


def _java_version() -> str:
    java = shutil.which("java")
    if java is None:
        return "unknown"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "([^"]+)"', output)
    return match[1] if match else "unknown"
