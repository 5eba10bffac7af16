"""A disk on which syncs of some files are slow, or wait until a gate is opened: `slow_sync.c`, for LD_PRELOAD."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

_SOURCE = Path(__file__).with_name("slow_sync.c")
_HELD_S_MAX = 60.0


def compiled_slow_sync(folder: Path) -> Path:
    """The library that makes syncs below a folder slow, for LD_PRELOAD."""
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        raise RuntimeError("A slow disk needs a C compiler (cc, gcc or clang) on PATH.")
    library = folder / "slow_sync.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


class Gate:
    """While it is closed, no sync of a file below a folder returns in the process that gets `env`."""

    def __init__(self, folder: Path, slow: Path) -> None:
        """`folder` gets the library and the gate; `slow` is where the files lie."""
        self._file = folder / "gate"
        self._held = folder / "gate.held"
        library = compiled_slow_sync(folder)
        self.env = {
            "LD_PRELOAD": str(library),
            "SLOW_SYNC_FOLDER": f"{slow}{os.sep}",
            "SLOW_SYNC_GATE": str(self._file),
        }

    def close(self) -> None:
        """Hold all syncs from now on."""
        self._held.unlink(missing_ok=True)
        self._file.touch()

    def wait_for_sync(self) -> None:
        """Return when a sync is held."""
        deadline_s = time.monotonic() + _HELD_S_MAX
        while not self._held.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError("no sync was begun")
            time.sleep(0.01)

    def open(self) -> None:
        """Let all syncs return."""
        self._file.unlink()
