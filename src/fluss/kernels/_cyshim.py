"""The `cython` module; where Cython is not installed, this module stands in for it and the kernels are plain Python."""

# Small on purpose: it is all that plain Python needs of Cython.

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

compiled = False


def cfunc(target: _T) -> _T:
    return target


ccall = cfunc
inline = cfunc
cclass = cfunc
final = cfunc
no_gc = cfunc


def exceptval(*_: object, **__: object) -> Callable[[_T], _T]:
    return cfunc


cdivision = exceptval
freelist = exceptval


def declare(_: object, value: Any = None, **__: object) -> Any:
    return value


def __getattr__(name: str) -> None:
    """Types and pointers appear only in annotations and in branches that plain Python never takes."""
    return None


try:
    import cython
except ImportError:
    cython = sys.modules[__name__]
