"""Findings of `fluss doctor`, and those about the installation: versions, compiled kernels, other packages of the
same name.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    status: str
    check: str  # what was looked at
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(OK, check, text)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(WARNING, check, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    return Finding(PROBLEM, check, text, advice)


_LIBRARIES: Final = ("pyarrow", "numpy", "protobuf", "rocksdict", "crc32c", "uvloop", "pyspark", "pyiceberg", "duckdb")
_RIVAL: Final = "pyfluss"


def environment_findings() -> Iterator[Finding]:
    """All of them; nothing here is a problem by itself."""
    yield ok("versions", ", ".join(_versions()))
    yield _kernels()
    yield _rival()


def _versions() -> Iterator[str]:
    yield f"flussbett {_version('flussbett')}"
    yield f"Python {platform.python_version()}"
    for name in _LIBRARIES:
        if (version := _version(name)) is not None:
            yield f"{name} {version}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _kernels() -> Finding:
    from fluss.formats import kernel

    if kernel.COMPILED:
        return ok("kernels", "compiled")
    return warning(
        "kernels",
        "plain Python, which is many times slower",
        "Install a C compiler and install flussbett anew; unset FLUSS_PURE if it is set.",
    )


def _rival() -> Finding:
    import fluss

    if _version(_RIVAL) is None:
        return ok("import name", f"'fluss' is {Path(fluss.__file__ or '').parent}")
    return warning(
        "import name",
        f"{_RIVAL} {_version(_RIVAL)} is installed too, and both own the import name 'fluss'",
        f"Keep them in environments of their own: 'pip uninstall {_RIVAL}', then install flussbett anew.",
    )
