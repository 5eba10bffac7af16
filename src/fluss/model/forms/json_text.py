"""JSON that somebody else wrote, with a bound on how deep it is nested.

Python reads, writes and compares nested values by recursion: what is nested a thousand deep is an error of the
interpreter somewhere later, far from the text that was wrong.
"""

from __future__ import annotations

import json
from typing import Any, Final

# A type that is nested as deep as types may be takes three levels of JSON for each of its own.
DEPTH_MAX: Final = 128


def parse_json(text: str | bytes) -> Any:
    """The value that a text spells; ValueError says why it can't be read."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """ValueError for a value that is nested too deep."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
