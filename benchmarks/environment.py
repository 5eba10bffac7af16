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
from pathlib import Path
from statistics import median

from fluss.formats.kernel import COMPILED
from fluss.testing.maven import FLUSS_VERSION

_REQUIREMENTS = Path(__file__).parents[1] / "requirements-pyfluss.lock"
_SYNC_PROBES = 50


def describe(folder: Path, *, with_apache: bool) -> dict[str, str]:
    """Versions, cores, kernels, and how long this disk takes for one sync in `folder`."""
    facts = {
        "Flussbett": f"{importlib.metadata.version('flussbett')}, kernels {'compiled' if COMPILED else 'not compiled'}",
        "pyfluss": _locked("pyfluss"),
    }
    if with_apache:
        facts["Apache Fluss"] = f"{FLUSS_VERSION} on Java {_java_version()}"
    return facts | {
        "Python, pyarrow": f"{platform.python_version()}, {importlib.metadata.version('pyarrow')}",
        "pyarrow of pyfluss": _locked("pyarrow"),
        "System": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
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


def _locked(package: str) -> str:
    match = re.search(rf"^{package}==(\S+)$", _REQUIREMENTS.read_text(), re.MULTILINE)
    return match[1] if match else "unknown"


def _java_version() -> str:
    java = shutil.which("java")
    if java is None:
        return "unknown"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "([^"]+)"', output)
    return match[1] if match else "unknown"
