"""A backup is restored whose tables have rows in a lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.sync import connect
from fluss.testing import FlussServer
from tests.kit.command import fluss, here
from tests.kit.lake.lake import Lake
from tests.kit.lake.unions import tier_fully


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A server of the test's own: of many tables only the first are named."""
    with FlussServer(tmp_path / "server") as server, connect(server.bootstrap_servers) as connection:
        yield Lake(server, connection, "fluss", server.data_dir.absolute() / "lake")


def test_what_is_in_the_lake_alone_is_named(lake: Lake, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64())])
    tiered = lake.create("tiered", columns)
    lake.create("fresh", columns)
    with tiered.new_append().create_writer() as writer:
        writer.append([1])
    tier_fully(lake, tiered)
    assert fluss("backup", tmp_path / "copy", bootstrap=lake.address).returncode == 0
    done = here("restore", tmp_path / "copy", tmp_path / "data", bootstrap="")
    assert done.returncode == 0
    assert f"rows of {lake.database}.tiered that are in the lake are not in the backup" in done.stderr
    assert "fresh" not in done.stderr
