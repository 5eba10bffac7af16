"""A network that fails: faults, how often, and how long calls may take beneath them."""

from __future__ import annotations

import time

from fluss.testing import FaultProxy

HEAL_S_MAX = 5.0
ROUNDS = 4
FAULTS = 10


def cut_all(proxy: FaultProxy) -> None:
    """Cut what is open, once something is: rows that were on the way count as progress before it is open again."""
    deadline = time.monotonic() + HEAL_S_MAX
    while not proxy.cut_all():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# Set-up has to keep it too, on a busy machine.
TIMEOUT_MS = 1_000
# Scheduling on a busy machine, and one try that began just before the deadline.
SLACK_S = 3.0
