"""A crowd of clients, and the limits that a server keeps to beneath it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.testing import FlussServer
from tests.kit.memory import MIB
from tests.kit.wire import ConnectionLostError, Wire

CLIENTS = 200
FLOOD_WRITERS = 64
READER_GROWTH_BYTES_MAX = 64 * MIB
BUDGET_EXCESS = 1.25


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FlussServer]:
    with FlussServer(tmp_path / "data", args=["--durability", "os"]) as running:
        yield running
    # Gigabytes, and pytest keeps the directories of the last runs.
    shutil.rmtree(tmp_path / "data")


def flood(address: str, api_key: int, bodies: list[bytes], requests: int) -> None:
    """A writer for each body sends it so often without waiting; then every one of them must have its answers."""
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with Wire(address, 120) as wire:
                answers = threading.Thread(target=lambda: [wire.receive() for _ in range(requests)])
                answers.start()
                for _ in range(requests):
                    wire.send(api_key, bodies[number])
                answers.join(120)
                assert not answers.is_alive(), f"writer {number}: answers are missing"
        except (AssertionError, ConnectionLostError) as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(len(bodies))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures, failures[0]
