"""What a command prints when it is interrupted: nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_PROGRAM: Final = """
from fluss.cli.failures import failing_as

async def call():
    pass

def interrupted(coroutine):
    raise KeyboardInterrupt

with failing_as(lambda: "fluss bench"):
    interrupted(call())
"""


def test_an_interrupt_leaves_no_word_of_coroutines() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
