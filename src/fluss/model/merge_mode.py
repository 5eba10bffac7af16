"""How an upsert writer's rows are merged: by the table's merge engine, or as they are."""

# Small on purpose: pickles that users keep name this module.

from __future__ import annotations

from enum import IntEnum


class MergeMode(IntEnum):
    """How an upsert writer's rows meet those that are there."""

    DEFAULT = 0
    """By the table's merge engine."""
    OVERWRITE = 1
    """As they are, whatever the merge engine: to set exact values again, an old state for example."""
