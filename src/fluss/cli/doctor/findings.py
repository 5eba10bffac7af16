"""What `fluss doctor` finds: each is good, a warning or a problem, with what to do about it."""

from __future__ import annotations

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
