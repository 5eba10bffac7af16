"""Environments of the peers: `python -m tests.peers.environments pyfluss` makes one and prints its interpreter."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from filelock import FileLock

_ROOT = Path(__file__).parents[2]
_PEERS = _ROOT / ".peers"
_INSTALL_TIMEOUT_S = 900


def pyfluss_python() -> Path:
    """The interpreter of the environment that `requirements-pyfluss.lock` describes; made on first use."""
    return _environment("pyfluss", _ROOT / "requirements-pyfluss.lock")


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
            subprocess.run([*install, "-r", str(requirements)], check=True, timeout=_INSTALL_TIMEOUT_S)
            marker.write_text(wanted)
    return python


if __name__ == "__main__":
    if sys.argv[1:] != ["pyfluss"]:
        sys.exit("usage: python -m tests.peers.environments pyfluss")
    print(pyfluss_python())
