"""Requests about databases, with their error codes."""

from __future__ import annotations

import json

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import Wire, WireError, create_table


def create(wire: Wire, name: str, ignore: bool = False, json_: bytes | None = None) -> None:
    request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore)
    if json_ is not None:
        request.database_json = json_
    wire.call(api_keys.CREATE_DATABASE, request)


def drop(wire: Wire, name: str, ignore: bool = False, cascade: bool = False) -> None:
    request = pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=ignore, cascade=cascade)
    wire.call(api_keys.DROP_DATABASE, request)


def names(wire: Wire) -> list[str]:
    return list(wire.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest()).database_name)


def exists(wire: Wire, name: str) -> bool:
    return wire.call(api_keys.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name=name)).exists


def test_default_database_is_there(wire: Wire) -> None:
    assert names(wire) == ["fluss"]


def test_create_info_drop(wire: Wire) -> None:
    create(wire, "shop", json_=b'{"version":1,"comment":"c","custom_properties":{"k":"v"}}')
    assert exists(wire, "shop")
    info = wire.call(api_keys.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name="shop"))
    assert json.loads(info.database_json) == {"version": 1, "comment": "c", "custom_properties": {"k": "v"}}
    assert info.created_time == info.modified_time > 0
    drop(wire, "shop")
    assert not exists(wire, "shop")
    assert names(wire) == ["fluss"]


def test_summary_counts_tables(wire: Wire) -> None:
    create_table(wire, "t")
    response = wire.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True))
    (summary,) = response.database_summary
    assert (summary.database_name, summary.table_count) == ("fluss", 1)


def test_ignored_conditions(wire: Wire) -> None:
    create(wire, "fluss", ignore=True)
    drop(wire, "missing", ignore=True)


def test_database_with_tables_needs_cascade(wire: Wire) -> None:
    create_table(wire, "t")
    with pytest.raises(WireError, match="1 tables") as raised:
        drop(wire, "fluss")
    assert raised.value.code == 5
    drop(wire, "fluss", cascade=True)
    assert names(wire) == []


def test_error_codes(wire: Wire) -> None:
    for action, code in (
        (lambda: create(wire, "fluss"), 6),
        (lambda: create(wire, "a/b"), 16),
        (lambda: create(wire, "x", json_=b"{"), 16),
        (lambda: create(wire, "x", json_=b"[]"), 16),
        (lambda: drop(wire, "missing"), 4),
        (lambda: drop(wire, ".."), 16),
        (lambda: exists(wire, ""), 16),
        (lambda: wire.call(api_keys.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name="missing")), 4),
        (lambda: wire.call(api_keys.LIST_TABLES, pb.ListTablesRequest(database_name="missing")), 4),
    ):
        with pytest.raises(WireError) as raised:
            action()
        assert raised.value.code == code, raised.value
    assert names(wire) == ["fluss"]
