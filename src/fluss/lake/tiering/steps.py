"""Steps of a tiering round at which a test can end the process, as a crash would: FLUSS_TIERING_CRASH=<step>."""

from __future__ import annotations

import os
from typing import Final

TASKS_DONE: Final = "tasks-done"
PREPARED: Final = "prepared"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
REGISTERED: Final = "registered"
STEPS: Final = (TASKS_DONE, PREPARED, COMMITTING, COMMITTED, REGISTERED)

CRASH_VARIABLE: Final = "FLUSS_TIERING_CRASH"
CRASH_CODE: Final = 86


def reached(step: str) -> None:
    """Go on, unless this is the step at which the process is to end."""
    if os.environ.get(CRASH_VARIABLE) == step:
        os._exit(CRASH_CODE)
