"""What Spark asks of the source, without Spark, while the server restarts at each kind of request: nothing is lost."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as st

from fluss.client.write.staged import StagedWriteCore
from fluss.model.errors import AuthenticationError, ConnectError, InvalidRequestError, NotFoundError
from fluss.server.net.users import add_user
from fluss.spark import waiting
from fluss.spark.source import FlussDataSource
from fluss.spark.write.writer import BATCH_ID, QUERY_ID
from fluss.sync import Config, FlussConnection, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer
from fluss.testing.processes import free_ports
from tests.spark.outages import Outages, outages_of
from tests.spark.stream_steps import KEYED, KEYED_BY_DAY, NUMBERS, SALES, Steps, Tables

DAYS = ("mon", "tue")
# Of every connection; the others tell the scenarios apart.
OF_ALL = {"ApiVersions", "Metadata"}
ROWS = st.StructType().add("id", st.LongType()).add("name", st.StringType())

Watching: TypeAlias = Callable[[], AbstractContextManager[None]]
Scenario: TypeAlias = Callable[[Tables, str, Watching], object]
"""Does something with a table that it makes, under watch what Spark does; what it returns is always the same"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("away") / "data") as server:
        yield server


@pytest.fixture
def tables(server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Tables]:
    tables = Tables(server.bootstrap_servers, new_name("away"))
    tables.admin.create_database(tables.database)
    yield tables
    tables.connection.close()


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that an application's processes share."""
    monkeypatch.setenv(waiting._SCRATCH, str(tmp_path))
    return tmp_path


@pytest.fixture
def outages(server: FlussServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outages]:
    with outages_of(server, monkeypatch) as outages:
        yield outages


def _source(tables: Tables, path: TablePath, **options: str) -> FlussDataSource:
    return FlussDataSource({"bootstrap.servers": tables.address, "table": str(path), **options})


def _read(source: FlussDataSource) -> list[dict[str, Any]]:
    """All rows of a batch read, in some order that is always the same."""
    reader = source.reader(source.schema())
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=repr)


def _by_day(tables: Tables, name: str, *, keyed: bool) -> TablePath:
    path = tables.create(name, KEYED_BY_DAY if keyed else SALES, 2, partition_keys=["day"])
    for day in DAYS:
        tables.admin.create_partition(path, {"day": day})
        if keyed:
            tables.upsert(path, *({"id": number, "day": day, "value": number} for number in range(20)))
        else:
            tables.append(path, 0, 20, day=day)
    return path


def read_log(tables: Tables, name: str, watching: Watching) -> object:
    path = _by_day(tables, name, keyed=False)
    with watching():
        return _read(_source(tables, path, **{"scan.maxRecordsPerPartition": "5"}))


def read_current_rows(tables: Tables, name: str, watching: Watching) -> object:
    path = _by_day(tables, name, keyed=True)
    with watching():
        return _read(_source(tables, path))


def append(tables: Tables, name: str, watching: Watching) -> object:
    source = _source(tables, tables.create(name, NUMBERS, 2))
    with watching():
        writer = pickle.loads(pickle.dumps(source.writer(ROWS, False)))
        assert writer.write(_batches(0, 5)).row_count == 5
    return _read(source)


def upsert(tables: Tables, name: str, watching: Watching) -> object:
    source = _source(tables, tables.create(name, KEYED, 2))
    values = ((number % 3, number) for number in range(9))
    batches = (
        pa.record_batch({"id": pa.array([key]), "value": pa.array([value], pa.int32())}) for key, value in values
    )
    schema = source.schema()
    with watching():
        writer = pickle.loads(pickle.dumps(source.writer(schema, False)))
        assert writer.write(batches).row_count == 9
    return _read(source)


def stream_log(tables: Tables, name: str, watching: Watching) -> object:
    path = _by_day(tables, name, keyed=False)
    with watching():
        steps = tables.stream(path, maxRowsPerTrigger="30")
        return sorted([*steps.ids(), *steps.ids(), *steps.ids()])


def stream_current_rows_and_changes(tables: Tables, name: str, watching: Watching) -> object:
    path = _by_day(tables, name, keyed=True)
    with watching():
        steps = tables.stream(path, changelog="true")
        rows = steps.ids()
    tables.upsert(path, {"id": 1, "day": "mon", "value": 7})
    steps.restart()
    with watching():
        return [rows, steps.ids(), steps.ids()]


def write_once(tables: Tables, name: str, watching: Watching) -> object:
    path = tables.create(name, NUMBERS, 2)
    source = _source(tables, path, **{"exactly.once": "true"})
    context = TaskContext._getOrCreate()
    context._partitionId = 0
    try:
        with watching():
            for batch_id in range(2):
                writer = source.streamWriter(ROWS, False)
                context._localProperties = {QUERY_ID: name, BATCH_ID: str(batch_id)}
                given_up, counted = (pickle.loads(pickle.dumps(writer)).write(_batches(batch_id, 5)) for _ in range(2))
                writer.commit([counted], batch_id)
                writer.abort([given_up], batch_id)
    finally:
        TaskContext._setTaskContext(None)
    return _read(_source(tables, path))


def _batches(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    for number in range(start, stop):
        yield pa.record_batch({"id": [number], "name": [f"n{number}"]})


@pytest.mark.parametrize(
    "scenario", [read_log, read_current_rows, append, upsert, stream_log, stream_current_rows_and_changes, write_once]
)
def test_a_server_that_restarts_at_any_request(tables: Tables, outages: Outages, scenario: Scenario) -> None:
    expected = scenario(tables, "clean", outages.watching)
    kinds = dict.fromkeys(outages.asked)
    for kind in kinds if scenario is read_log else kinds.keys() - OF_ALL:
        outages.strike(kind)
        assert scenario(tables, f"at_{kind.lower()}", outages.watching) == expected, kind
        assert outages.is_over, kind
    assert outages.begun
    assert all(tables.address in text and "120 s (server.wait-timeout-ms)" in text for text in outages.begun)
    assert len(outages.ended) == len(outages.begun)


def test_a_server_that_stays_away(tables: Tables, server: FlussServer, outages: Outages) -> None:
    path = tables.create("left", NUMBERS)
    source = _source(tables, path, **{"server.wait-timeout-ms": "300", "request-timeout-ms": "300"})
    steps = tables.stream(path, **{"server.wait-timeout-ms": "300"})
    writer = source.writer(ROWS, False)
    outages.keep_away()
    for ask in (source.schema, steps.step, lambda: writer.write(_batches(0, 1))):
        with pytest.raises(ConnectError) as caught:
            ask()
        text = str(caught.value)
        assert f"No Fluss server answers at {tables.address}" in text
        assert "It was waited for, for 0.3 s (server.wait-timeout-ms)." in text
        assert "\n" not in text
    assert len(outages.begun) == 3


def test_a_query_that_ends_tries_once_to_forget_what_it_staged(
    tables: Tables, server: FlussServer, outages: Outages, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _source(tables, tables.create("ended", NUMBERS), **{"exactly.once": "true"})
    writer = source.streamWriter(ROWS, False)
    context = TaskContext._getOrCreate()
    context._partitionId, context._localProperties = 0, {QUERY_ID: "ended", BATCH_ID: "0"}
    try:
        staged = pickle.loads(pickle.dumps(writer)).write(_batches(0, 5))
    finally:
        TaskContext._setTaskContext(None)
    request, limits_s = StagedWriteCore._ask, []

    async def watched(self: StagedWriteCore, *of: Any) -> Any:
        server.kill()  # the connection is open
        limits_s.append(self._limit_s)
        return await request(self, *of)

    monkeypatch.setattr(StagedWriteCore, "_ask", watched)
    writer.abort([staged], 0)
    assert [limit_s < 1 for limit_s in limits_s] == [True]
    assert not outages.begun


def test_an_address_that_never_answered_is_told_soon(
    scratch: Path, outages: Outages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "OPENING_MS", 100)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(ConnectError, match=rf"{address} .*for 0\.1 s \(connect-timeout\)"):
        FlussDataSource({"bootstrap.servers": address, "table": "a.b"}).schema()
    assert not list(scratch.iterdir())


def test_an_address_that_has_answered_is_waited_for(
    tables: Tables, server: FlussServer, outages: Outages, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _source(tables, tables.create("known", NUMBERS))
    expected = source.schema()
    server.kill()
    assert source.schema() == expected
    [mark] = scratch.iterdir()
    mark.unlink()
    monkeypatch.setattr(waiting, "OPENING_MS", 100)
    outages.keep_away()
    with pytest.raises(ConnectError, match="connect-timeout"):
        source.schema()
    outages.settle()
    # A task is only there because the driver has reached the server.
    TaskContext._getOrCreate()
    try:
        server.kill()
        assert source.schema() == expected
    finally:
        TaskContext._setTaskContext(None)
    assert not list(scratch.iterdir())


def test_other_errors_come_at_once(tables: Tables, tmp_path: Path, outages: Outages) -> None:
    with pytest.raises(NotFoundError):
        _source(tables, TablePath(tables.database, "nowhere")).schema()
    users, settings = tmp_path / "users", tmp_path / "server.toml"
    add_user(users, "anna", "secret")
    settings.write_text(f'sasl-users = "{users}"\n')
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as strict:
        login = {"security.protocol": "sasl", "security.sasl.username": "anna", "security.sasl.password": "wrong"}
        options = {"bootstrap.servers": strict.bootstrap_servers, "table": "a.b"}
        for wrong in (options, options | login):
            with pytest.raises(AuthenticationError):
                FlussDataSource(wrong).schema()
    assert not outages.begun


def test_a_server_that_comes_back_with_an_older_directory(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        tables = Tables(server.bootstrap_servers, "fluss")
        path = tables.create("older", NUMBERS)
        tables.append(path, 0, 5)
        server.kill()
        shutil.copytree(server.data_dir, tmp_path / "older")
        server.start()
        tables.append(path, 5, 9)
        short = {"server.wait-timeout-ms": "300", "request-timeout-ms": "300"}
        steps = tables.stream(path, **short)
        assert steps.ids() == list(range(9))
        begin = steps.begin
        [part] = steps.reader.partitions(begin, steps.end)
        server.kill()
        server.data_dir = tmp_path / "older"
        server.start()
        with pytest.raises(InvalidRequestError, match="ends at offset 5, but the stream knows rows up to 9"):
            steps.step()
        # What was planned before is planned again after a restart of the driver, or is being read already.
        steps.restart()
        steps.begin = begin
        with pytest.raises(InvalidRequestError, match="ends at offset 5, but the stream knows rows up to 9"):
            steps.again()
        with pytest.raises(InvalidRequestError, match="are not there any more: the server has lost them"):
            list(steps.reader.read(part))
        tables.connection.close()


def test_a_server_that_comes_back_at_another_of_its_addresses(tmp_path: Path) -> None:
    ports = free_ports(2)
    address = ",".join(f"127.0.0.1:{port}" for port in ports)
    with FlussServer(tmp_path / "data", port=ports[0]) as server:
        tables = Tables(address, "fluss")
        path = tables.create("moved", NUMBERS)
        source, steps = _source(tables, path), tables.stream(path)
        writer = source.writer(ROWS, False)
        server.kill()
        server.port = ports[1]
        server.start()
        assert writer.write(_batches(0, 3)).row_count == 3
        assert steps.ids() == [0, 1, 2]
        tables.connection.close()


def test_a_table_that_was_made_anew_meanwhile(tables: Tables, server: FlussServer) -> None:
    path = tables.create("anew", NUMBERS)
    tables.append(path, 0, 5)
    steps, writer = tables.stream(path), _source(tables, path).writer(ROWS, False)
    assert steps.ids() == list(range(5))
    for create, error, text in (
        (False, NotFoundError, f"Table {path} does not exist"),
        (True, InvalidRequestError, "was dropped and created again"),
    ):
        tables.admin.drop_table(path, ignore_if_not_exists=True)
        if create:
            tables.create("anew", NUMBERS)
        server.restart()
        with pytest.raises(error, match=text):
            steps.step()
        with pytest.raises(error, match=text):
            writer.write(_batches(5, 6))


def test_a_password_that_was_changed_meanwhile(tmp_path: Path) -> None:
    users, settings = tmp_path / "users", tmp_path / "server.toml"
    add_user(users, "anna", "secret")
    settings.write_text(f'sasl-users = "{users}"\n')
    login = {"security.protocol": "sasl", "security.sasl.username": "anna", "security.sasl.password": "secret"}
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server:
        options = {"bootstrap.servers": server.bootstrap_servers, "table": "fluss.kept", **login}
        with FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers, **login})) as connection:
            connection.get_admin().create_table(TablePath("fluss", "kept"), TableDescriptor(Schema(NUMBERS)))
        source = FlussDataSource(options)
        writer, steps = source.writer(ROWS, False), Steps(options)
        server.kill()
        users.unlink()
        add_user(users, "anna", "another")
        server.start()
        for ask in (source.schema, steps.step, lambda: writer.write(_batches(0, 1))):
            with pytest.raises(AuthenticationError, match="refused the login of user 'anna'"):
                ask()
