"""What a union read reads."""

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"  # the lake and the log
NONE: Final = "none"  # the log alone
ONLY: Final = "only"  # the lake alone
MODES: Final = (AUTO, NONE, ONLY)
