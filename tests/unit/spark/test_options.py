"""Options as users write them and as Spark passes them on."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import fluss.spark
from fluss.model.errors import ConnectError, InvalidRequestError
from fluss.model.paths import TablePath
from fluss.spark.read.options import ReadOptions
from fluss.spark.source_options import SourceOptions
from fluss.spark.write.plan import WriteOptions
from fluss.sync import FlussConnection, connect

SERVER = {"bootstrap.servers": "host:9123"}


def test_table_and_client_settings_are_told_apart() -> None:
    options = SourceOptions.parse(
        {**SERVER, "table": "shop.orders", "client.writer.acks": "1", "request-timeout-ms": "7"}
    )
    assert options.table_path == TablePath("shop", "orders")
    assert options.own == {}
    config = options.config()
    assert (config.bootstrap_servers, config.writer_acks, config.request_timeout_ms) == ("host:9123", "1", 7)


def test_option_names_may_have_any_case() -> None:
    options = SourceOptions.parse({"Bootstrap.Servers": "host:9123", "TABLE": "Shop.Orders", "Client.Writer.Acks": "0"})
    assert options.table_path == TablePath("Shop", "Orders")
    assert options.config().writer_acks == "0"


def test_load_argument_names_the_table() -> None:
    assert SourceOptions.parse({**SERVER, "path": "shop.orders"}).table_path == TablePath("shop", "orders")


@pytest.mark.parametrize("name", ["shop.orders$changelog", "shop.orders$CHANGELOG"])
def test_a_table_may_be_named_as_its_changelog(name: str) -> None:
    for place in ({"table": name}, {"path": name}, {"table": name, "changelog": "true"}):
        options = SourceOptions.parse({**SERVER, **place})
        assert options.table_path == TablePath("shop", "orders")
        assert ReadOptions.of(options).changelog
    with pytest.raises(InvalidRequestError, match=r"\$changelog is the changelog of shop.orders: leave"):
        SourceOptions.parse({**SERVER, "table": name, "changelog": "false"})
    with pytest.raises(InvalidRequestError, match="is for reading"):
        WriteOptions.of(SourceOptions.parse({**SERVER, "table": name}))
    with pytest.raises(InvalidRequestError, match=r"orders\$changelog has each change"):
        SourceOptions.parse({**SERVER, "table": "shop.orders$binlog"})


def test_columns_are_split_and_trimmed() -> None:
    assert _columns("x, y ,z") == ("x", "y", "z")


@pytest.mark.parametrize("text", ["x,,y", "x,x", ""])
def test_columns_are_named_once(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="must name each column once, separated by commas"):
        _columns(text)


def _columns(text: str) -> tuple[str, ...] | None:
    return ReadOptions.of(SourceOptions.parse({**SERVER, "table": "a.b", "columns": text})).columns


def test_options_travel() -> None:
    options = SourceOptions.parse({**SERVER, "table": "a.b", "columns": "x"})
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "a.b"}, "needs .option('bootstrap.servers', 'host:port')"),
        (SERVER, "needs a table: .option('table', 'database.table')"),
        ({**SERVER, "table": "orders"}, "must be named as database.table, not 'orders'"),
        ({**SERVER, "table": "a.b.c"}, "Invalid table name 'b.c'"),
        ({**SERVER, "table": "a.b", "path": "a.c"}, "Two tables are named: 'a.b' by the option, 'a.c'"),
        ({**SERVER, "tabel": "a.b"}, "Unknown option 'tabel' for the data source 'fluss'. Did you mean 'table'?"),
        (
            {**SERVER, "table": "a.b", "colums": "x"},
            "Unknown option 'colums' for the data source 'fluss'. Did you mean",
        ),
        ({**SERVER, "table": "a.b", "checkpointlocatoin": "x"}, "Did you mean 'checkpointLocation'?"),
        ({**SERVER, "table": "a.b", "query_name": "x"}, "Did you mean 'queryName'?"),
        ({**SERVER, "table": "a.b", "maxrowpertrigger": "1"}, "Did you mean 'maxRowsPerTrigger'?"),
        ({**SERVER, "table": "a.b", "client.nonsense": "1"}, "Unknown option 'client.nonsense'"),
        (
            {**SERVER, "table": "a.b", "writer.acks": "7"},
            "Invalid value '7' for writer.acks: expected one of all, -1, 1, 0",
        ),
        ({"bootstrap.servers": "file:data/fluss", "table": "a.b"}, "The path of 'file:data/fluss' must be absolute"),
        ({"bootstrap.servers": "file://host/data", "table": "a.b"}, "'host' stands where a host name would"),
        ({"bootstrap.servers": "memory:", "table": "a.b"}, ".options(**fluss.spark.options(connection))"),
        ({"bootstrap.servers": " memory:x", "table": "a.b"}, "The server of 'memory:x' belongs to one Python process"),
    ],
)
def test_mistakes_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SourceOptions.parse(options)
    assert message in str(caught.value)


def test_options_of_a_stream_are_sparks_own() -> None:
    options = SourceOptions.parse({**SERVER, "table": "a.b", "queryname": "sums", "checkpointlocation": "/tmp/sums"})
    assert WriteOptions.of(options) == WriteOptions.of(SourceOptions.parse({**SERVER, "table": "a.b"}))
    assert options.config() == SourceOptions.parse({**SERVER, "table": "a.b"}).config()


@pytest.mark.parametrize("name", ["queryName", "checkpointLocation"])
def test_a_read_has_no_query_name_and_no_checkpoint(name: str) -> None:
    options = SourceOptions.parse({**SERVER, "table": "a.b", name.lower(): "sums"})
    with pytest.raises(InvalidRequestError, match=rf"'{name}' is for streams that are written \(df.writeStream\)"):
        ReadOptions.of(options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"mergeschema": "true"},
            "'mergeSchema' can't be used with the data source 'fluss': a write does not change a",
        ),
        ({"partitionoverwritemode": "dynamic"}, "'partitionOverwriteMode' can't be used with the data source 'fluss'"),
        ({"replacewhere": "id = 1"}, "delete them with write.mode=delete, then append."),
        ({"failondataloss": "false"}, "start it with a new checkpoint and scan.startup.mode=earliest."),
        ({"ignorecorruptfiles": "true"}, "rows that can't be read are never left out."),
        ({"startingoffsets": "earliest"}, "say where a stream begins by scan.startup.mode,"),
        ({"versionasof": "3"}, "say where a batch read ends by scan.end.offsets"),
        ({"readchangefeed": "true"}, "set changelog=true."),
        ({"maxfilespertrigger": "3"}, "limit micro-batches by maxRowsPerTrigger or maxBytesPerTrigger."),
        ({"outputmode": "update"}, "call .outputMode(...)."),
        ({"trigger": "availableNow"}, "call .trigger(...)."),
        ({"mode": "overwrite"}, "call .mode('append')"),
        ({"paths": '["a.b","a.c"]'}, "load one table at a time, and combine them by union."),
        ({"txnappid": "x", "txnversion": "1"}, "stored once with exactly.once=true"),
        ({"spark.sql.shuffle.partitions": "1"}, "is a setting of the session: call spark.conf.set("),
        ({"provider": "fluss", "owner": "me", "option.table": "a.b"}, "CREATE TABLE ... USING fluss makes no table"),
    ],
)
def test_what_other_sources_understand_is_refused_with_advice(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SourceOptions.parse({**SERVER, "table": "a.b", **given})
    assert message in str(caught.value)


def test_what_happens_anyway_may_be_asked_for() -> None:
    given = {
        "mergeschema": "false",
        "overwriteschema": "FALSE",
        "failondataloss": "true",
        "ignorecorruptfiles": "false",
        "ignoremissingfiles": "false",
        "partitionoverwritemode": "static",
        "readchangefeed": "false",
    }
    options = SourceOptions.parse({**SERVER, "table": "a.b", **given})
    assert options == SourceOptions.parse({**SERVER, "table": "a.b"})


def test_a_directory_is_reached_from_its_own_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SourceOptions.parse({"bootstrap.servers": "file:///data/fluss", "table": "a.b"})
    assert options.config().bootstrap_servers == "file:///data/fluss"
    elsewhere = pickle.dumps(options)
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7")
    with pytest.raises(ConnectError, match=r"file:///data/fluss is a directory of \S+, and this task runs on worker-7"):
        pickle.loads(elsewhere).config()
    assert SourceOptions.parse({**SERVER, "table": "a.b"}).config().bootstrap_servers == "host:9123"


def test_options_of_a_connection_reach_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect("memory:spark", request_timeout_ms=7_000) as connection:
        reached = fluss.spark.options(connection)
        assert reached["request-timeout-ms"] == "7000"
        connection.get_admin().create_database("seen")
        with FlussConnection.create(SourceOptions.parse({**reached, "table": "a.b"}).config()) as other:
            assert "seen" in other.get_admin().list_databases()
    monkeypatch.chdir(tmp_path)
    with connect("file:my data") as connection:
        assert fluss.spark.options(connection) == {"bootstrap.servers": (tmp_path / "my data").as_uri()}
