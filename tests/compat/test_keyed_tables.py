"""Primary-key tables with rules of their own: partitions, engines, numbers, altered schemas; restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluss import ErrorCode, FlussError
from fluss.testing import FlussServer
from tests.compat.conftest import ON_OUR_SERVER, Cluster, connect_all
from tests.compat.differences import JAVA, OUR_CLIENT, PYFLUSS
from tests.compat.users import USERS, create, few_buckets, seen, user
from tests.peers.fixtures import PeerFactory
from tests.peers.jsonlines import PeerError
from tests.peers.peer import Row
from tests.peers.pyfluss import PyflussPeer

SCORES = {"user": "INT", "region": "STRING", "score": "BIGINT"}


@pytest.fixture
def both(cluster: Cluster, database: str, record_property: Callable[[str, object], None]) -> dict[str, Any]:
    """The clients that can do all; pyfluss is no proof of it."""
    found = few_buckets(cluster)
    record_property("clients", list(found))
    return found


@pytest.mark.feature("Primary keys: partitions")
def test_everyone_finds_the_rows_of_every_partition(cluster: Cluster, database: str) -> None:
    options: dict[str, Any] = {"primary_keys": ["user", "region"], "partition_keys": ["region"]}
    cluster.create_table(OUR_CLIENT, database, "parted", SCORES, **options)
    regions = [name.replace(" ", "_") for name in cluster.clients]
    for creator, region in zip(cluster.clients, regions, strict=True):
        cluster.create_partition(creator, database, "parted", {"region": region})
    for turn, client in enumerate(cluster.clients.values()):
        rows = [{"user": number, "region": region, "score": turn} for region in regions for number in range(10)]
        client.upsert_rows(database, "parted", rows)
        client.delete_rows(database, "parted", [{"user": 9, "region": region} for region in regions])
        keys = [{"user": row["user"], "region": row["region"]} for row in rows]
        for reader, other in cluster.clients.items():
            found = other.lookup(database, "parted", keys)
            assert found == [row if row["user"] != 9 else None for row in rows], reader
            assert other.lookup(database, "parted", [{"user": 1, "region": "nowhere"}]) == [None], reader
    for reader, client in cluster.clients.items():
        changes = client.scan_records(database, "parted")
        assert len(changes) == len(regions) * (11 + (9 * 2 + 1 + 1) * (len(cluster.clients) - 1)), reader


@pytest.mark.feature("Primary keys: prefix lookup")
def test_everyone_finds_prefixes_in_partitions(cluster: Cluster, database: str) -> None:
    columns = {"region": "STRING", "device": "INT", "at": "BIGINT", "value": "INT"}
    options = {"primary_keys": list(columns)[:3], "partition_keys": ["region"], "bucket_keys": ["device"]}
    cluster.create_table(OUR_CLIENT, database, "readings", columns, **options)
    for region in ("eu", "us"):
        cluster.create_partition(OUR_CLIENT, database, "readings", {"region": region})
    rows = [{"region": "eu", "device": n % 3, "at": n, "value": n} for n in range(30)]
    for client in cluster.clients.values():
        client.upsert_rows(database, "readings", rows)
    prefixes = [{"region": "eu", "device": 1}, {"region": "us", "device": 1}, {"region": "eu", "device": 7}]
    for reader, client in cluster.clients.items():
        found = client.prefix_lookup(database, "readings", prefixes, columns=["region", "device"])
        assert found == [[row for row in rows if row["device"] == 1], [], []], reader


@pytest.mark.feature("Primary keys: merge engines")
def test_engines_are_the_same_for_everyone(cluster: Cluster, database: str) -> None:
    ages: list[int | None] = [3, None, 5, 5, 4]
    versioned = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "age"}
    for name, properties, last in (
        ("first_row", {"table.merge-engine": "first_row"}, 0),
        ("versioned", versioned, 3),
        ("aggregated", {"table.merge-engine": "aggregation"}, 4),
    ):
        for creator in cluster.clients:
            table = f"{name}_{creator.replace(' ', '_')}"
            create(cluster, creator, database, table, USERS, properties=properties)
            for turn, client in enumerate(cluster.clients.values()):
                for number, age in enumerate(ages):
                    client.upsert_rows(database, table, [user(turn, f"row {number}", age)])
                client.delete_rows(database, table, [{"id": turn}])
            rows = [user(turn, f"row {last}", ages[last]) for turn in range(len(cluster.clients))]
            for reader, client in cluster.clients.items():
                keys = [{"id": row["id"]} for row in rows]
                assert client.lookup(database, table, keys) == rows, (table, reader)


@pytest.mark.feature("Primary keys: merge engines")
def test_columns_are_aggregated(cluster: Cluster, database: str, both: dict[str, Any]) -> None:
    columns = {"id": "INT", "total": "BIGINT", "most": "INT", "words": "STRING", "last": "STRING"}
    functions = {"total": ["sum", {}], "most": ["max", {}], "words": ["listagg", {"delimiter": "|"}]}
    options: dict[str, Any] = {"properties": {"table.merge-engine": "aggregation"}, "aggregations": functions}
    for creator in both:
        table = f"totals_{creator.replace(' ', '_')}"
        create(cluster, creator, database, table, columns, **options)
        row: Row = {"id": 1, "total": 2, "most": 5, "words": "a", "last": "x"}
        for client in cluster.clients.values():
            client.upsert_rows(database, table, [row, {**row, "most": 3, "words": None, "last": None}])
        count = len(cluster.clients)
        combined = {**row, "total": 4 * count, "words": "|".join("a" * count)}
        for reader, client in cluster.clients.items():
            assert client.lookup(database, table, [{"id": 1}]) == [combined], (creator, reader)
        for client in both.values():
            client.upsert_rows(database, table, [{**row, "total": 1}], overwrite=True)
            assert client.lookup(database, table, [{"id": 1}]) == [{**row, "total": 1}], creator


@pytest.mark.feature("Primary keys: delete behaviour")
def test_deletes_are_refused_where_the_table_says_so(cluster: Cluster, database: str) -> None:
    create(cluster, PYFLUSS, database, "kept", USERS, properties={"table.delete.behavior": "disable"})
    for name, client in cluster.clients.items():
        client.upsert_rows(database, "kept", [user(1, name)])
        with pytest.raises((FlussError, PeerError)) as refused:
            client.delete_rows(database, "kept", [{"id": 1}])
        error: Any = refused.value
        code = error.code if isinstance(error, PeerError) else error.error_code
        assert code == ErrorCode.DELETION_DISABLED_EXCEPTION, name
        client.reopen_table(database, "kept")
        assert client.lookup(database, "kept", [{"id": 1}]) == [user(1, name)]


@pytest.mark.feature("Primary keys: insert if not exists")
def test_lookups_insert_what_is_missing(cluster: Cluster, database: str, both: dict[str, Any]) -> None:
    create(cluster, OUR_CLIENT, database, "inserted", USERS)
    model: dict[int, Row] = {}
    for turn, (name, client) in enumerate(both.items()):
        own, missing = user(10 * turn, name, 1), user(10 * turn + 1)
        client.upsert_rows(database, "inserted", [own])
        keys = [{"id": row["id"]} for row in (own, missing, missing)]
        assert client.lookup(database, "inserted", keys, insert_if_not_exists=True) == [own, missing, missing]
        model |= {row["id"]: row for row in (own, missing)}
    changes = [(offset, "+I", row) for offset, row in enumerate(model.values())]
    for reader, client in cluster.clients.items():
        assert client.lookup(database, "inserted", [{"id": key} for key in model]) == list(model.values()), reader
        assert seen(client.scan_records(database, "inserted")) == changes, reader


@pytest.mark.feature("Primary keys: insert if not exists")
def test_inserted_rows_are_numbered(cluster: Cluster, database: str, both: dict[str, Any]) -> None:
    create(cluster, OUR_CLIENT, database, "tickets", {"id": "INT", "number": "BIGINT"}, auto_increment="number")
    given: dict[int, Row | None] = {}
    for turn, client in enumerate(both.values()):
        keys = [{"id": number} for number in range(turn, turn + 3)]
        found = client.lookup(database, "tickets", keys, insert_if_not_exists=True)
        assert [given.get(row["id"], row) for row in found] == found
        given |= {row["id"]: row for row in found}
    assert sorted(row["number"] for row in given.values() if row) == list(range(1, len(given) + 1))


@pytest.mark.feature("Primary keys: auto-increment")
def test_rows_are_numbered_whoever_writes_them(cluster: Cluster, database: str) -> None:
    columns = {"id": "INT", "number": "BIGINT", "name": "STRING"}
    for creator in cluster.clients:
        table = f"numbered_by_{creator.replace(' ', '_')}"
        create(cluster, creator, database, table, columns, auto_increment="number")
        for turn, (name, client) in enumerate(cluster.clients.items()):
            rows = [{"id": 10 * turn + number, "name": name} for number in range(5)]
            client.upsert_rows(database, table, rows, columns=["id", "name"])
            client.upsert_rows(database, table, rows[:2], columns=["id", "name"])
        keys = [{"id": 10 * turn + number} for turn in range(len(cluster.clients)) for number in range(5)]
        found = [client.lookup(database, table, keys) for client in cluster.clients.values()]
        assert all(rows == found[0] for rows in found)
        numbers = [row["number"] for row in found[0]]
        assert numbers == sorted(set(numbers)), creator
        assert numbers[0] == 1


@pytest.mark.feature("Primary keys: schema evolution")
def test_old_rows_are_found_with_new_columns(cluster: Cluster, database: str) -> None:
    for alterer in few_buckets(cluster):
        table = f"altered_by_{alterer.replace(' ', '_')}"
        create(cluster, PYFLUSS, database, table, USERS)
        model: dict[int, Row] = {}
        for turn, (name, client) in enumerate(cluster.clients.items()):
            client.upsert_rows(database, table, [user(10 * turn + number, name) for number in range(4)])
            model |= {10 * turn + number: user(10 * turn + number, name) for number in range(4)}
        cluster.clients[alterer].alter_table(database, table, add_columns={"email": "STRING", "tags": "ARRAY<INT>"})
        for turn, (name, client) in enumerate(cluster.clients.items()):
            # A writer that was there before knows the old schema only.
            client.upsert_rows(database, table, [user(10 * turn, "between")])
            client.reopen_table(database, table)
            whole = {**user(10 * turn + 1, "after"), "email": f"{name}@x", "tags": [1, None]}
            client.upsert_rows(database, table, [whole])
            client.upsert_rows(database, table, [{"id": 10 * turn + 2, "email": "part"}], columns=["id", "email"])
            model |= {10 * turn: user(10 * turn, "between"), 10 * turn + 1: whole}
            model[10 * turn + 2] = {**model[10 * turn + 2], "email": "part"}
        rows = [{"email": None, "tags": None, **row} for row in model.values()]
        for reader, client in cluster.clients.items():
            assert client.lookup(database, table, [{"id": key} for key in model]) == rows, (alterer, reader)
            assert client.limit_scan(database, table, 100) == rows, (alterer, reader)
            folded = {change.row["id"]: change.row for change in client.scan_records(database, table)}
            assert folded == {row["id"]: row for row in rows}, (alterer, reader)


@pytest.mark.feature("Table statistics")
def test_rows_of_keyed_tables_are_counted(cluster: Cluster, database: str, both: dict[str, Any]) -> None:
    create(cluster, PYFLUSS, database, "counted", USERS)
    for client in cluster.clients.values():
        client.upsert_rows(database, "counted", [user(number) for number in range(30)])
        client.delete_rows(database, "counted", [{"id": number} for number in range(25, 40)])
        for reader in both.values():
            assert reader.table_stats(database, "counted") == 25


@pytest.mark.feature("A killed server")
@pytest.mark.parametrize("cluster", ON_OUR_SERVER, indirect=True)
def test_keyed_rows_survive_a_restart_for_everyone(
    matrix_server: FlussServer,
    cluster: Cluster,
    database: str,
    request: pytest.FixtureRequest,
    pyfluss_peers: PeerFactory[PyflussPeer],
) -> None:
    create(cluster, PYFLUSS, database, "restarted", USERS)
    for turn, (name, client) in enumerate(cluster.clients.items()):
        client.upsert_rows(database, "restarted", [user(number, name, turn) for number in range(100)])
        client.delete_rows(database, "restarted", [{"id": 99 - turn}])
    keys = [{"id": number} for number in range(100)]
    before = cluster.clients[OUR_CLIENT].lookup(database, "restarted", keys)
    matrix_server.restart()
    assert cluster.clients[OUR_CLIENT].lookup(database, "restarted", keys) == before
    java = request.getfixturevalue("java_peers") if JAVA in cluster.clients else None
    for name, client in connect_all(matrix_server.bootstrap_servers, pyfluss_peers, java).items():
        assert client.lookup(database, "restarted", keys) == before, name
        client.upsert_rows(database, "restarted", [user(0, f"after, {name}")])
        before[0] = client.lookup(database, "restarted", keys[:1])[0]
        assert before[0] == user(0, f"after, {name}")
        client.close()
