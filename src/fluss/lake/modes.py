"""Modes of a union read: lake and log, the log alone, or the lake alone."""

# Small on purpose: options are read without loading the lake.

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"  # the lake and the log
NONE: Final = "none"  # the log alone
ONLY: Final = "only"  # the lake alone
MODES: Final = (AUTO, NONE, ONLY)
