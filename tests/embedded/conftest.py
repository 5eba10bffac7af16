"""Every test ends with no server left: those of its directory are killed by their pid, and then none may run."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.client.net import embedded
from fluss.client.runtime import run
from tests.embedded.processes import await_true, embedded_servers, memory_tasks, zombies


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that no server has used."""
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def no_stray_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Where `memory:` puts its directories.
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    run(_forget_memory())
    for pid in embedded_servers(tmp_path):
        os.kill(pid, signal.SIGTERM)
    await_true(lambda: not embedded_servers(tmp_path), 20)
    assert not list(temporary.glob("fluss-memory-*"))
    await_true(lambda: not zombies(), 20)


async def _forget_memory() -> None:
    tasks = memory_tasks()
    while tasks:
        embedded._let_go((await tasks.popitem()[1]).lifeline)
