"""`fluss staged` against a server whose query was put back, and that is restarted meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.testing import FlussServer
from tests.kit.command import fluss as run
from tests.kit.command import here

PATH = fluss.TablePath("shop", "events")
QUERY = "5f9c7f3a-1c1e-4c1c-9d0a-0d5a2b8e6f11"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FlussServer]:
    with FlussServer(tmp_path / "data") as server:
        with fluss.sync.connect(server.bootstrap_servers) as connection:
            admin = connection.get_admin()
            admin.create_database("shop")
            schema = fluss.Schema(pa.schema([("id", pa.int64())]))
            admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=2))
        for batch_id in range(5):
            write(server, batch_id, [batch_id])
        yield server


def write(server: FlussServer, batch_id: int, ids: list[int]) -> bool:
    """One batch of the query; whether it had been committed before."""
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        write = connection.get_table(PATH).new_staged_write(QUERY, batch_id)
        with write.create_writer(0, ids[0] + 100) as writer:
            writer.write_arrow_batch(pa.record_batch({"id": pa.array(ids, pa.int64())}))
            write.commit([writer.finish()])
        return write.is_repeated


def ids(server: FlussServer) -> list[int]:
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        found: list[int] = connection.get_table(PATH).new_scan().to_arrow().column("id").to_pylist()
    return sorted(found)


def listed(server: FlussServer, *arguments: str) -> list[dict[str, Any]]:
    done = here("staged", "list", *arguments, "-o", "json", bootstrap=server.bootstrap_servers)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def good(server: FlussServer, *arguments: str, input: str = "") -> str:
    done = here("staged", *arguments, bootstrap=server.bootstrap_servers, input=input)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(server: FlussServer, *arguments: str, input: str = "") -> str:
    done = here("staged", *arguments, bootstrap=server.bootstrap_servers, input=input)
    assert done.returncode == 1, done.stdout
    return done.stderr


def test_accept(server: FlussServer) -> None:
    (query,) = listed(server)
    assert (query["table"], query["query"], query["batch"], query["rows"]) == ("shop.events", QUERY, 4, 1)
    assert (query["committing"], query["accepted up to"], query["staged bytes"]) == (None, None, 0)
    with pytest.raises(fluss.InvalidRequestError) as raised:
        write(server, 2, [20, 21])
    # The command is run as the message has it.
    command = raised.value.message.split("`")[1]
    assert command == f"fluss staged accept shop.events {QUERY} 4"
    assert "Aborted" in bad(server, *command.split()[2:], input="n\n")
    with pytest.raises(fluss.InvalidRequestError, match="is refused"):
        write(server, 2, [20, 21])
    done = run(*command.split()[1:], "--yes", bootstrap=server.bootstrap_servers)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"query {QUERY}: batches up to 4 that come again are taken for stored in shop.events" in done.stdout
    server.restart()
    assert listed(server)[0]["accepted up to"] == 4
    assert write(server, 2, [20, 21])
    assert write(server, 4, [40])
    assert not write(server, 5, [5])
    assert ids(server) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(fluss.InvalidRequestError, match="is refused"):
        write(server, 4, [40])


def test_reset(server: FlussServer) -> None:
    with pytest.raises(fluss.InvalidRequestError) as raised:
        write(server, 2, [20, 21])
    command = raised.value.message.split("`")[3]
    assert command == f"fluss staged reset shop.events {QUERY} --to 1"
    assert "Aborted" in bad(server, *command.split()[2:])
    assert good(server, *command.split()[2:], input="y\n").startswith(f"query {QUERY}: batches after 1")
    server.restart()
    assert not write(server, 2, [20, 21])
    assert ids(server) == [0, 1, 2, 3, 4, 20, 21]
    good(server, "reset", "shop.events", QUERY, "--yes")
    assert "no queries with staged writes" in good(server, "list")
    server.restart()
    assert not write(server, 0, [30])
    assert ids(server) == [0, 1, 2, 3, 4, 20, 21, 30]


def test_what_is_staged_is_listed(server: FlussServer) -> None:
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        writer = connection.get_table(PATH).new_staged_write("another", 0).create_writer(0, 0)
        writer.write_arrow_batch(pa.record_batch({"id": [1]}))
        writer.finish()
    found, other = listed(server)
    assert found["query"].startswith("(files ")
    assert found["staged bytes"] > 0
    assert found["staged since"] is not None
    assert other["query"] == QUERY
    assert listed(server, "shop.events") == [found, other]
    assert QUERY in good(server, "list")


def test_mistakes(server: FlussServer) -> None:
    for arguments, text in [
        (("list", "shop.event"), "Did you mean shop.events?"),
        (("accept", "shop.event", QUERY, "4", "--yes"), "Did you mean shop.events?"),
        (("accept", "shop.events", QUERY, "5", "--yes"), "the last one committed to table shop.events is 4"),
        (("accept", "shop.events", "x", "4", "--yes"), "'fluss staged list' shows those that are known"),
        (("reset", "shop.events", "x", "--yes"), "'fluss staged list' shows those that are known"),
    ]:
        (line,) = bad(server, *arguments).splitlines()
        assert line.startswith("fluss staged: ")
        assert text in line
    assert listed(server)[0]["batch"] == 4


def test_an_embedded_server(tmp_path: Path) -> None:
    done = here("staged", "list", bootstrap=f"file:{tmp_path / 'data'}")
    assert (done.returncode, done.stdout) == (0, "no queries with staged writes\n")
