"""Stands in for the `cython` module when the kernel runs as plain Python and Cython is not installed."""

from __future__ import annotations

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
