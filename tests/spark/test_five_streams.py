"""Five streams while drivers and the server are killed: exact, and no query ends because the server restarted.

What is exact, DuckDB says of the rows that were acknowledged.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa
import pytest

from fluss.sync import Config, FlussConnection, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer
from tests.spark.drivers import Drivers
from tests.spark.five_streams import PAYMENT_S_MAX, SINKS, SOURCES, WINDOW_S

# Half an hour; the ordinary tests have the server restart under three streams: test_stopped_queries.py.
pytestmark = [pytest.mark.spark, pytest.mark.full]

_TIME: Final = pa.timestamp("us", tz="UTC")
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
ROWS_PER_ROUND: Final = 30
ACCOUNTS: Final = 100
KINDS_OF_EVENTS: Final = 5
STEP: Final = timedelta(milliseconds=100)
"""Between the times of events, whose order is not quite that of their times"""
DISORDER_S_MAX: Final = 20.0

Row: TypeAlias = dict[str, Any]

SCHEMAS: Final[dict[str, pa.Schema]] = {
    "events": pa.schema({"id": pa.int64(), "at": _TIME, "kind": pa.int32(), "amount": pa.int64()}),
    "orders": pa.schema({"id": pa.int64(), "at": _TIME, "amount": pa.int64()}),
    "payments": pa.schema({"order_id": pa.int64(), "paid_at": _TIME, "paid": pa.int64()}),
    "accounts": pa.schema({"id": pa.int64(), "balance": pa.int64()}),
    "windows": pa.schema({"since": _TIME, "kind": pa.int32(), "events": pa.int64(), "amount": pa.int64()}),
    "totals": pa.schema({"kind": pa.int32(), "events": pa.int64(), "amount": pa.int64(), "latest": pa.int64()}),
    "joined": pa.schema({"id": pa.int64(), "amount": pa.int64(), "paid": pa.int64()}),
    "copy": pa.schema({"id": pa.int64(), "balance": pa.int64()}),
    "audit": pa.schema({"change": pa.string(), "log_offset": pa.int64(), "id": pa.int64(), "balance": pa.int64()}),
}
KEYS: Final = {"accounts": ["id"], "totals": ["kind"], "copy": ["id"]}
# Rows are late for a window or a join by their times, so these have one order.
ORDERED: Final = ("events", "orders", "payments")

# Of the sinks, from what was written: "changes" are upserts of accounts in their order, and deletes, without a balance.
TRUTH: Final = {
    "windows": f"""
        SELECT time_bucket(INTERVAL {WINDOW_S} SECOND, "at") AS since, kind, count(*) AS events,
               CAST(sum(amount) AS BIGINT) AS amount
        FROM events WHERE amount > 0 GROUP BY ALL""",
    "totals": """
        SELECT kind, count(*) AS events, CAST(sum(amount) AS BIGINT) AS amount, max(id) AS latest
        FROM events GROUP BY ALL""",
    "joined": f"""
        SELECT id, amount, paid FROM orders JOIN payments
        ON id = order_id AND paid_at BETWEEN "at" AND "at" + INTERVAL {PAYMENT_S_MAX} SECOND""",
    "copy": "SELECT id, arg_max_null(balance, number) AS balance FROM changes GROUP BY id HAVING balance IS NOT NULL",
    "audit": """
        WITH steps AS (
            SELECT id, balance, lag(balance) OVER (PARTITION BY id ORDER BY number) AS before FROM changes)
        SELECT '+I' AS change, id, balance FROM steps WHERE before IS NULL
        UNION ALL SELECT '-U', id, before FROM steps WHERE before IS NOT NULL AND balance IS NOT NULL
        UNION ALL SELECT '+U', id, balance FROM steps WHERE before IS NOT NULL AND balance IS NOT NULL
        UNION ALL SELECT '-D', id, before FROM steps WHERE balance IS NULL""",
}
TRUTH["accounts"] = TRUTH["copy"]


class Feed(threading.Thread):
    """Writes into the sources until it is told to stop."""

    def __init__(self, connection: FlussConnection, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._chance = chance
        self._stopped = threading.Event()
        self.written: dict[str, list[Row]] = {name: [] for name in (*ORDERED, "changes")}
        self._balances: dict[int, int] = {}
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopped.wait(0.3):
                self._round()
        except BaseException as error:
            self._error = error
            raise

    def stop(self) -> None:
        """The last event is much later than all others, so that their windows are over."""
        self._stopped.set()
        self.join(200)
        assert not self.is_alive()
        assert self._error is None, self._error
        count = len(self.written["events"])
        self._append("events", [{"id": count, "at": _time(count) + timedelta(hours=1), "kind": 0, "amount": 0}])

    def _round(self) -> None:
        start = len(self.written["events"])
        ids, chance = range(start, start + ROWS_PER_ROUND), self._chance
        self._append(
            "events",
            [
                {
                    "id": number,
                    "at": _time(number) + timedelta(seconds=chance.uniform(-DISORDER_S_MAX, 0)),
                    "kind": number % KINDS_OF_EVENTS,
                    "amount": chance.randint(1, 1_000),
                }
                for number in ids
            ],
        )
        self._append("orders", [{"id": number, "at": _time(number), "amount": number * 3} for number in ids])
        # Of orders of some rounds before: some are not paid, some twice, some too late.
        paid = [number - chance.randint(0, 4 * ROWS_PER_ROUND) for number in chance.sample(ids, ROWS_PER_ROUND // 2)]
        self._append(
            "payments",
            [
                {
                    "order_id": number,
                    "paid_at": _time(number) + timedelta(seconds=chance.uniform(0, 1.2 * PAYMENT_S_MAX)),
                    "paid": len(self.written["payments"]) + place,
                }
                for place, number in enumerate(paid)
            ],
        )
        self._change_accounts()

    def _append(self, table: str, rows: list[Row]) -> None:
        with self._connection.get_table(TablePath("fluss", table)).new_append().create_writer() as writer:
            writer.write_arrow(pa.Table.from_pylist(rows, schema=SCHEMAS[table]))
        self.written[table] += rows

    def _change_accounts(self) -> None:
        changes = self.written["changes"]
        with self._connection.get_table(TablePath("fluss", "accounts")).new_upsert().create_writer() as writer:
            for _ in range(ROWS_PER_ROUND // 2):
                number, account = len(changes), self._chance.randrange(ACCOUNTS)
                if account in self._balances and self._chance.random() < 0.25:
                    writer.delete({"id": account, "balance": self._balances.pop(account)})
                    changes.append({"number": number, "id": account, "balance": None})
                else:
                    self._balances[account] = number
                    writer.upsert({"id": account, "balance": number})
                    changes.append({"number": number, "id": account, "balance": number})


def _time(number: int) -> datetime:
    return _BEGIN + number * STEP


def make_tables(connection: FlussConnection) -> None:
    for name in (*SOURCES, *SINKS):
        descriptor = TableDescriptor(Schema(SCHEMAS[name], KEYS.get(name)), bucket_count=1 if name in ORDERED else 2)
        connection.get_admin().create_table(TablePath("fluss", name), descriptor)


def kill_driver(server: FlussServer, drivers: Drivers, chance: random.Random) -> None:
    drivers.kill()


def kill_server(server: FlussServer, drivers: Drivers, chance: random.Random) -> None:
    server.kill()
    time.sleep(2 * chance.random())
    server.start()


def kill_both(server: FlussServer, drivers: Drivers, chance: random.Random) -> None:
    """The next driver starts while the server is away."""
    server.kill()
    drivers.kill()
    drivers.start()
    time.sleep(2 * chance.random())
    server.start()


Kill: TypeAlias = Callable[[FlussServer, Drivers, random.Random], None]


def _twenty_and_ten(chance: random.Random) -> list[Kill]:
    """So many kills of drivers, and of the server."""
    counts: dict[Kill, int] = {kill_driver: 17, kill_server: 7, kill_both: 3}
    return chance.sample(list(counts), sum(counts.values()), counts=list(counts.values()))


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[tuple[FlussServer, FlussConnection]]:
    with FlussServer(tmp_path / "data") as server:
        config = Config({"bootstrap.servers": server.bootstrap_servers, "server.wait-timeout-ms": 120_000})
        with FlussConnection.create(config) as connection:
            yield server, connection


@pytest.mark.timeout(5400)  # drivers are started again and again, and each takes its time
def test_five_streams_are_exact(connection: tuple[FlussServer, FlussConnection], tmp_path: Path) -> None:
    server, client = connection
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    make_tables(client)
    drivers = Drivers(
        "tests.spark.five_streams", {"address": server.bootstrap_servers, "rows_per_trigger": 10_000}, tmp_path
    )
    feed = Feed(client, random.Random(seed + 1))
    try:
        drivers.start()
        feed.start()
        for kill in _twenty_and_ten(chance):
            drivers.await_commits(chance.randint(1, 6))
            time.sleep(chance.random())
            kill(server, drivers, chance)
        drivers.await_commits(len(SINKS))
        feed.stop()
        drivers.drain()
    finally:
        drivers.kill()
    assert not drivers.failures, drivers.failures[0][-4_000:]
    _check(client, feed.written)


def _check(client: FlussConnection, written: dict[str, list[Row]]) -> None:
    with duckdb.connect() as truth:
        changes = pa.schema({"number": pa.int64(), "id": pa.int64(), "balance": pa.int64()})
        for name, rows in written.items():
            schema = changes if name == "changes" else SCHEMAS[name]
            truth.register(name, _without_zone(pa.Table.from_pylist(rows, schema=schema)))
        for name in (*ORDERED, "accounts", *SINKS):
            expected: pa.Table = truth.sql(TRUTH.get(name, f"FROM {name}")).to_arrow_table()
            assert expected.num_rows > 0, name
            found = _without_zone(client.get_table(TablePath("fluss", name)).new_scan().to_arrow())
            assert _rows(found.select(expected.column_names)) == _rows(expected), name
        audit = client.get_table(TablePath("fluss", "audit")).new_scan().to_arrow()
        assert audit.group_by(["id", "log_offset"]).aggregate([]).num_rows == len(audit)
    print({name: len(rows) for name, rows in written.items()})


def _without_zone(table: pa.Table) -> pa.Table:
    """Times as DuckDB has them without an extension."""
    naive = pa.timestamp("us")
    types = [naive if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows in an order that is always the same, however often each is there."""
    return sorted(zip(*table.to_pydict().values(), strict=True))
