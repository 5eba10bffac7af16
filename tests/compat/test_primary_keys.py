"""Primary-key tables: every client upserts, deletes, looks up and follows changes, and finds what the others wrote.

One bucket wherever pyfluss 1.0.0 takes part, whose buckets are not Java's; several between Java and our client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.compat.conftest import Cluster
from tests.compat.differences import OUR_CLIENT, PYFLUSS, expected
from tests.compat.users import USERS, create, few_buckets, seen, user
from tests.peers.ourclient import OurPeer
from tests.peers.peer import Row
from tests.peers.samples import COLUMNS, EMPTY, FULL, NESTED, NESTED_EMPTY, NESTED_FULL, NESTED_HOLLOW

EVENTS = {"device": "BIGINT", "kind": "STRING", "at": "INT", "value": "DOUBLE"}
# No floating-point numbers: nobody should have them in a key.
KEYS = [name for name in COLUMNS if name not in ("single", "exact")]


@pytest.mark.feature("Primary keys: upsert and delete")
def test_everyone_finds_what_anyone_wrote(cluster: Cluster, database: str) -> None:
    for creator in cluster.clients:
        table = f"made_by_{creator.replace(' ', '_')}"
        create(cluster, creator, database, table, USERS)
        model: dict[int, Row] = {}
        for turn, (name, client) in enumerate(cluster.clients.items()):
            own = [user(100 * turn + number, name, number) for number in range(20)]
            shared = [user(-1, f"last written by {name}", turn), user(2**31 - 1, None, -turn)]
            client.upsert_rows(database, table, own + shared)
            client.delete_rows(database, table, [{"id": 100 * turn + number} for number in range(0, 20, 3)])
            # What another has written may be updated and deleted too.
            client.upsert_rows(database, table, [user(1, f"touched by {name}")])
            client.delete_rows(database, table, [{"id": 2}, {"id": 777}])
            model |= {row["id"]: row for row in [*own, *shared, user(1, f"touched by {name}")]}
            for number in [2, *range(100 * turn, 100 * turn + 20, 3)]:
                model.pop(number, None)
        keys = [*model, 0, 2, 777]
        for reader, client in cluster.clients.items():
            found = client.lookup(database, table, [{"id": key} for key in keys])
            assert found == [model.get(key) for key in keys], (creator, reader)


@pytest.mark.feature("Primary keys: types")
def test_everyone_finds_values_of_every_type(cluster: Cluster, database: str) -> None:
    columns = {"id": "INT", **COLUMNS, **NESTED}
    create(cluster, OUR_CLIENT, database, "values", columns)
    written: list[Row] = []
    for name, client in cluster.clients.items():
        first = 10 * list(cluster.clients).index(name)
        samples = [{**FULL, **NESTED_FULL}, {**EMPTY, **NESTED_EMPTY}, {**FULL, **NESTED_HOLLOW}]
        rows = [{"id": first + number, **row} for number, row in enumerate(samples)]
        client.upsert_rows(database, "values", rows)
        written += rows
    changes = [(offset, "+I", row) for offset, row in enumerate(written)]
    for reader, client in cluster.clients.items():
        assert client.lookup(database, "values", [{"id": row["id"]} for row in written]) == written, reader
        assert seen(client.scan_records(database, "values")) == changes, reader
        assert client.limit_scan(database, "values", 100) == written, reader


@pytest.mark.feature("Primary keys: types")
def test_everyone_finds_keys_of_every_type(cluster: Cluster, database: str) -> None:
    cluster.create_table(OUR_CLIENT, database, "keys", {**COLUMNS, "writer": "STRING"}, primary_keys=KEYS)
    key = {name: FULL[name] for name in KEYS}
    for writer, client in cluster.clients.items():
        client.upsert_rows(database, "keys", [{**FULL, "writer": writer}])
        for reader, other in cluster.clients.items():
            assert other.lookup(database, "keys", [key]) == [{**FULL, "writer": writer}], (writer, reader)
    for deleter, client in cluster.clients.items():
        client.upsert_rows(database, "keys", [{**FULL, "writer": deleter}])
        client.delete_rows(database, "keys", [key])
        assert client.lookup(database, "keys", [key]) == [None], deleter


@pytest.mark.feature("Primary keys: partial update")
def test_everyone_updates_some_columns(cluster: Cluster, database: str) -> None:
    create(cluster, OUR_CLIENT, database, "parts", USERS)
    for writer, client in cluster.clients.items():
        client.upsert_rows(database, "parts", [user(1, "whole", 1)])
        client.upsert_rows(database, "parts", [{"id": 1, "age": 2}, {"id": 2, "age": 3}], columns=["id", "age"])
        client.upsert_rows(database, "parts", [{"id": 1, "name": writer}], columns=["id", "name"])
        client.delete_rows(database, "parts", [{"id": 2}], columns=["id", "age"])
        for reader, other in cluster.clients.items():
            assert other.lookup(database, "parts", [{"id": 1}, {"id": 2}]) == [user(1, writer, 2), None], reader


@pytest.mark.feature("Primary keys: prefix lookup")
def test_everyone_finds_the_rows_of_a_prefix(cluster: Cluster, database: str) -> None:
    keys = ["device", "kind", "at"]
    cluster.create_table(OUR_CLIENT, database, "events", EVENTS, primary_keys=keys, bucket_keys=keys[:2])
    written: list[Row] = []
    for turn, client in enumerate(cluster.clients.values()):
        rows = [{"device": n % 3, "kind": f"k{n % 2}", "at": 100 * turn + n, "value": n / 4} for n in range(30)]
        client.upsert_rows(database, "events", rows)
        written += rows
    prefixes = [{"device": device, "kind": kind} for device in (0, 1, 2, 200) for kind in ("k0", "k1", "none")]
    rows_of = [[row for row in written if row.items() >= prefix.items()] for prefix in prefixes]
    wanted = [sorted(rows, key=lambda row: int(row["at"])) for rows in rows_of]
    for reader, client in cluster.clients.items():
        found = client.prefix_lookup(database, "events", prefixes, columns=keys[:2])
        assert [sorted(rows, key=lambda row: int(row["at"])) for rows in found] == wanted, reader


@pytest.mark.feature("Primary keys: changelog")
def test_everyone_follows_the_changes_of_everyone(cluster: Cluster, database: str) -> None:
    create(cluster, PYFLUSS, database, "followed", USERS)
    tails = {name: client.start_tail(database, "followed") for name, client in cluster.clients.items()}
    end = 0
    for writer, client in cluster.clients.items():
        client.upsert_rows(database, "followed", [user(1, writer)])
        client.upsert_rows(database, "followed", [user(1, writer, 5)])
        client.delete_rows(database, "followed", [{"id": 1}])
        changes = [
            (end, "+I", user(1, writer)),
            (end + 1, "-U", user(1, writer)),
            (end + 2, "+U", user(1, writer, 5)),
            (end + 3, "-D", user(1, writer, 5)),
        ]
        # A delete of nothing takes an offset of its own.
        client.delete_rows(database, "followed", [{"id": 1}])
        end += 5
        for reader, tail in tails.items():
            assert seen(tail.take(4)) == changes, (writer, reader)
    for tail in tails.values():
        tail.stop()
    for reader, client in cluster.clients.items():
        assert client.list_offsets(database, "followed") == {0: end}, reader


@pytest.mark.feature("Primary keys: limit scan")
def test_everyone_reads_some_rows_of_a_bucket(cluster: Cluster, database: str) -> None:
    create(cluster, OUR_CLIENT, database, "limited", USERS)
    for turn, client in enumerate(cluster.clients.values()):
        client.upsert_rows(database, "limited", [user(20 * turn + number, "x", number) for number in range(20)])
        client.delete_rows(database, "limited", [{"id": 20 * turn + number} for number in range(10)])
    left = [user(20 * turn + n, "x", n) for turn in range(len(cluster.clients)) for n in range(10, 20)]
    for reader, client in cluster.clients.items():
        assert client.limit_scan(database, "limited", 1_000) == left, reader
        assert client.limit_scan(database, "limited", 1_000, columns=["age"]) == [{"age": row["age"]} for row in left]
        assert client.limit_scan(database, "limited", 3) == left[:3], reader


@pytest.mark.feature("Primary keys: several buckets")
def test_keys_have_the_same_bucket_for_java_and_us(
    cluster: Cluster, database: str, record_property: Callable[[str, object], None]
) -> None:
    clients = few_buckets(cluster)
    record_property("clients", list(clients))
    columns = {"id": "BIGINT", "name": "STRING", "value": "INT"}
    options: dict[str, Any] = {"primary_keys": ["id", "name"], "bucket_count": 7}
    cluster.create_table(OUR_CLIENT, database, "spread", columns, **options)
    rows: list[Row] = [{"id": n * 37_000_003 - 10**9, "name": f"n\u00e4me {n}", "value": n} for n in range(200)]
    keys = [{"id": row["id"], "name": row["name"]} for row in rows]
    for writer, client in clients.items():
        client.upsert_rows(database, "spread", [{**row, "value": len(writer) + row["value"]} for row in rows])
        for reader, other in clients.items():
            found = other.lookup(database, "spread", keys)
            assert found == [{**row, "value": len(writer) + row["value"]} for row in rows], (writer, reader)
        assert client.table_stats(database, "spread") == 200
    ends = clients[OUR_CLIENT].list_offsets(database, "spread")
    assert all(ends.values())
    # Each key has had one insert and only updates since: nobody put it into another bucket.
    assert sum(ends.values()) == 200 * (2 * len(clients) - 1)
    for client in clients.values():
        client.delete_rows(database, "spread", keys[:100])
        assert client.lookup(database, "spread", keys[:100]) == [None] * 100
    assert sum(len(client.limit_scan(database, "spread", 1_000, bucket=bucket)) for bucket in range(7)) == 100


@pytest.mark.feature("Primary keys: several buckets")
def test_pyfluss_keys_are_found_with_its_own_bucket_function(cluster: Cluster, database: str) -> None:
    assert not expected(PYFLUSS, cluster.name)["buckets_are_those_of_java"]
    create(cluster, PYFLUSS, database, "hashed", USERS, bucket_count=16)
    rows = [user(number, "pyfluss") for number in range(120, 400, 7)]
    keys = [{"id": row["id"]} for row in rows]
    cluster.clients[PYFLUSS].upsert_rows(database, "hashed", rows)
    assert cluster.clients[PYFLUSS].lookup(database, "hashed", keys) == rows
    assert None in cluster.clients[OUR_CLIENT].lookup(database, "hashed", keys)
    like_pyfluss = OurPeer(cluster.server.bootstrap_servers, {"client.bucket-hash": "pyfluss"})
    assert like_pyfluss.lookup(database, "hashed", keys) == rows
    like_pyfluss.upsert_rows(database, "hashed", [user(number, "ours") for number in range(500, 600, 7)])
    like_pyfluss.delete_rows(database, "hashed", keys[::2])
    ours = [{"id": number} for number in range(500, 600, 7)]
    assert cluster.clients[PYFLUSS].lookup(database, "hashed", ours) == [user(key["id"], "ours") for key in ours]
    left = [row if number % 2 else None for number, row in enumerate(rows)]
    assert cluster.clients[PYFLUSS].lookup(database, "hashed", keys) == left
    like_pyfluss.close()


@pytest.mark.feature("Primary keys: reading a whole table")
def test_we_read_the_whole_table_that_all_wrote(
    cluster: Cluster, database: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("clients", [OUR_CLIENT])
    create(cluster, OUR_CLIENT, database, "whole", USERS, bucket_count=3)
    clients = few_buckets(cluster)
    model: dict[int, Row] = {}
    for turn, (writer, client) in enumerate(clients.items()):
        rows = [user(number, writer, turn) for number in range(50 * turn, 300)]
        client.upsert_rows(database, "whole", rows)
        client.delete_rows(database, "whole", [{"id": 70 + turn}])
        model |= {row["id"]: row for row in rows}
        del model[70 + turn]
    found = clients[OUR_CLIENT].read_table(database, "whole")
    assert sorted(found, key=lambda row: int(row["id"])) == [model[key] for key in sorted(model)]
