"""Staged writes in the terms of both sides."""

from __future__ import annotations

from typing import NamedTuple


class StagedTask(NamedTuple):
    """One attempt at a part of a batch: which, and how many requests it staged."""

    task: int
    attempt: int
    request_count: int
