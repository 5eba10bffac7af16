"""The server under test, with segments small enough that a short load rolls them many times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fluss.testing import FlussServer

SEGMENT_SIZE_BYTES = 16 << 10
RETENTION_INTERVAL_MS = 100
SNAPSHOT_INTERVAL_MS = 300
CLOCK_SETTLE_MS = 0


def new_server(
    directory: Path, *, args: Sequence[str] = (), env: Mapping[str, str] | None = None, more: str = ""
) -> FlussServer:
    """A server that is not started yet, its data and settings, those in `more` too, below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "fluss.toml"
    settings.write_text(
        f'"log.segment.file-size" = {SEGMENT_SIZE_BYTES}\n'
        f'"log.retention.check-interval-ms" = {RETENTION_INTERVAL_MS}\n'
        f'"kv.snapshot.interval-ms" = {SNAPSHOT_INTERVAL_MS}\n'
        f'"clock.settle-ms" = {CLOCK_SETTLE_MS}\n'
        f"{more}"
    )
    return FlussServer(directory / "data", args=["--config", str(settings), *args], env=env)
