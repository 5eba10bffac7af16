"""Kills at random moments, and how long a server may take to be back."""

from __future__ import annotations

import random
import signal
import time

from fluss.testing import FlussServer

HEAL_S_MAX = 5.0
MOMENT_S_MAX = 0.15
# Some kills come right after a start, when buckets are being recovered and clients come back.
EARLY_KILL_SHARE = 0.25


def kill_at_random_moment(server: FlussServer, chance: random.Random) -> None:
    time.sleep(chance.uniform(0, MOMENT_S_MAX))
    server.kill()
    assert server.process.returncode == -signal.SIGKILL, "the server had ended before it was killed"
