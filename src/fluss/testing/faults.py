"""What a fault proxy can do to a frame, and what it has counted."""

from __future__ import annotations

import enum
import random
from collections import Counter
from dataclasses import dataclass, field


class Direction(enum.Enum):
    REQUEST = "request"
    RESPONSE = "response"


class Action(enum.Enum):
    DROP = "drop"
    """Swallow the frame and leave the connection open."""
    DROP_AND_CUT = "drop and cut"
    """Swallow the frame, then cut the connection."""
    CUT_MID_FRAME = "cut mid-frame"
    """Forward a part of the frame, at least one byte and never all, then cut the connection."""
    FORWARD_AND_CUT = "forward and cut"
    """Forward the whole frame, then cut the connection."""
    DELAY = "delay"
    """Hold the frame, and those behind it in its direction, for the fault's `delay_s`."""


@dataclass(frozen=True, eq=False)
class Fault:
    """One rule. A frame that matches suffers the action with the given probability.

    `api_keys` None matches every frame; a response matches by the key of its request. The first `skip` matching frames
    pass unharmed, and the rule is spent after `limit` injections.
    """

    action: Action
    direction: Direction
    api_keys: frozenset[int] | None = None
    probability: float = 1.0
    skip: int = 0
    limit: int | None = None
    delay_s: float = 0.0


@dataclass
class ProxyCounters:
    """Frames and bytes that reached the other side, whole or (bytes only) in part; faults by action."""

    connections: int = 0
    refused_connections: int = 0
    invalid_frames: int = 0
    frames: Counter[Direction] = field(default_factory=Counter)
    bytes: Counter[Direction] = field(default_factory=Counter)
    requests_by_api: Counter[int] = field(default_factory=Counter)
    responses_by_api: Counter[int] = field(default_factory=Counter)
    faults: Counter[Action] = field(default_factory=Counter)
    dropped_by_api: Counter[int] = field(default_factory=Counter)
    """Frames that did not arrive whole, by api key."""

    def forwarded(self, direction: Direction, api_key: int | None, size: int) -> None:
        self.frames[direction] += 1
        self.bytes[direction] += size
        if api_key is not None:
            by_api = self.requests_by_api if direction is Direction.REQUEST else self.responses_by_api
            by_api[api_key] += 1


class FaultRules:
    """The active rules and how often each has matched and struck."""

    def __init__(self) -> None:
        self._rules: dict[Fault, _Usage] = {}

    def add(self, fault: Fault) -> None:
        self._rules[fault] = _Usage()

    def remove(self, fault: Fault) -> None:
        self._rules.pop(fault, None)

    def clear(self) -> None:
        self._rules.clear()

    def strike(self, direction: Direction, api_key: int | None, chance: random.Random) -> list[Fault]:
        """The faults this frame suffers: any delays, and at most one of the others, the oldest rule first."""
        struck: list[Fault] = []
        for fault, usage in self._rules.items():
            if fault.direction is not direction or (fault.api_keys is not None and api_key not in fault.api_keys):
                continue
            ends_frame = fault.action is not Action.DELAY
            if ends_frame and any(other.action is not Action.DELAY for other in struck):
                continue
            usage.matched += 1
            spent = fault.limit is not None and usage.injected >= fault.limit
            if usage.matched <= fault.skip or spent or chance.random() >= fault.probability:
                continue
            usage.injected += 1
            struck.append(fault)
        return struck


@dataclass
class _Usage:
    matched: int = 0
    injected: int = 0
