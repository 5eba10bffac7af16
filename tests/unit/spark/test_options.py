"""Options as users write them and as Spark passes them on."""

from __future__ import annotations

import pickle

import pytest

from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TablePath
from fluss.spark.options import SourceOptions

SERVER = {"bootstrap.servers": "host:9123"}


def test_table_and_client_settings_are_told_apart() -> None:
    options = SourceOptions.parse(
        {**SERVER, "table": "shop.orders", "client.writer.acks": "1", "request-timeout-ms": "7"}
    )
    assert options.table_path == TablePath("shop", "orders")
    assert options.columns is None
    config = options.config()
    assert (config.bootstrap_servers, config.writer_acks, config.request_timeout_ms) == ("host:9123", "1", 7)


def test_option_names_may_have_any_case() -> None:
    options = SourceOptions.parse({"Bootstrap.Servers": "host:9123", "TABLE": "Shop.Orders", "Client.Writer.Acks": "0"})
    assert options.table_path == TablePath("Shop", "Orders")
    assert options.config().writer_acks == "0"


def test_load_argument_names_the_table() -> None:
    assert SourceOptions.parse({**SERVER, "path": "shop.orders"}).table_path == TablePath("shop", "orders")


def test_columns_are_split_and_trimmed() -> None:
    assert SourceOptions.parse({**SERVER, "table": "a.b", "columns": "x, y ,z"}).columns == ("x", "y", "z")


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
        ({**SERVER, "table": "a.b", "client.nonsense": "1"}, "Unknown option 'client.nonsense'"),
        (
            {**SERVER, "table": "a.b", "writer.acks": "7"},
            "Bad value '7' for writer.acks: expected one of all, -1, 1, 0",
        ),
        ({**SERVER, "table": "a.b", "columns": "x,,y"}, "must name each column once, separated by commas"),
        ({**SERVER, "table": "a.b", "columns": "x,x"}, "must name each column once, separated by commas"),
        ({"bootstrap.servers": "file:///tmp/x", "table": "a.b"}, "needs the address of a running server, host:port"),
        ({"bootstrap.servers": "memory:", "table": "a.b"}, "needs the address of a running server, host:port"),
    ],
)
def test_mistakes_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SourceOptions.parse(options)
    assert message in str(caught.value)
