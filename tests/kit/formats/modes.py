"""The compiled kernel beside the plain one, and what to compare them on."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import strategies as st

from fluss.formats import _kernel as plain
from fluss.model.errors import FlussError

EXPECT_COMPILED = os.environ.get("FLUSS_EXPECT_COMPILED") == "1"


def _compiled() -> ModuleType | None:
    try:
        return importlib.import_module("fluss.formats._kernel_c")
    except ImportError:
        return None


COMPILED = _compiled()
needs_both = pytest.mark.skipif(
    COMPILED is None and not EXPECT_COMPILED, reason="the compiled kernel was not built (set FLUSS_EXPECT_COMPILED=1)"
)


def outcome_of(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "returned", call()
    except (FlussError, ValueError) as error:
        return type(error).__name__, str(error)


def in_both_modes(call: Callable[[Any], Any]) -> tuple[tuple[str, Any], tuple[str, Any]]:
    assert COMPILED is not None
    return outcome_of(lambda: call(plain)), outcome_of(lambda: call(COMPILED))


def damage_bytes(data: st.DataObject, buf: bytearray) -> None:
    for _ in range(3):
        buf[data.draw(st.integers(0, len(buf) - 1))] = data.draw(st.integers(0, 255))
