"""The same puts to our server and to Apache Fluss 0.9.1 leave the same changelog, record by record, and rows."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap

import fluss
from fluss import ErrorCode
from fluss.model.aggregation import AggFunction
from fluss.testing import ApacheFluss, FlussServer
from tests.compat.changelog_tables import AUTO_INCREMENT, BITMAPS, NESTED_ROWS, NESTED_TABLE, TABLES, KeyedTable
from tests.compat.differences import APACHE, OUR_CLIENT, OUR_SERVER, expected
from tests.compat.raw_table import Answer, Batch, Put, RawTable

pytestmark = [pytest.mark.compat, pytest.mark.feature("Primary keys: changelog")]

PUTS = 60
NO_WRITER = -1
WRITERS = (NO_WRITER, 9_000_001, 9_000_002)
RESEND_PROBABILITY = 0.1


class Pair:
    """One table on both servers: what one answers, the other has to answer too."""

    def __init__(self, ours: RawTable, apache: RawTable) -> None:
        self.ours, self.apache = ours, apache
        self.learning: list[int] = []  # places of batches that were put to see whether a new schema is known

    def put(self, put: Put) -> Answer:
        ours, apache = self.ours.put(put), self.apache.put(put)
        assert ours == apache, (self.ours.last_error, self.apache.last_error, put)
        return ours

    def put_all(self, table: KeyedTable, rng: random.Random) -> None:
        """Random puts by several writers in turn, who now and then send again what they sent last."""
        sequences = dict.fromkeys(WRITERS, 0)
        last: dict[int, Put] = {}
        # Apache Fluss 0.9.1 merges a batch before it sees that it has it already, and may fail at that.
        resend_probability = 0.0 if table.can_fail else RESEND_PROBABILITY
        for put in table.puts(rng, PUTS):
            writer_id = rng.choice(WRITERS)
            sequence = NO_WRITER if writer_id == NO_WRITER else sequences[writer_id]
            put = put._replace(writer_id=writer_id, sequence=sequence)
            if self.put(put).error_code == 0:
                sequences[writer_id] += 1
                last[writer_id] = put
            if writer_id != NO_WRITER and writer_id in last and rng.random() < resend_probability:
                assert self.put(last[writer_id]).error_code == 0

    def alter(self, columns: list[tuple[str, pa.DataType]]) -> None:
        """Add columns to both tables, and wait until both write with them: Apache's tablet hears of them late."""
        for table in (self.ours, self.apache):
            table.alter(columns)
        nothing = Put([({"k": -1}, None)])
        while not self.learning or self.apache.changelog()[-1].schema_id == 1:
            self.learning.append(len(self.apache.changelog()))
            self.put(nothing)

    def check(self) -> list[Batch]:
        """Both changelogs are the same, and so is what both have stored."""
        ours, apache = self.ours.changelog(), self.apache.changelog()
        for place, (mine, theirs) in enumerate(zip(ours, apache, strict=False)):
            if place in self.learning[:-1]:
                theirs = theirs._replace(schema_id=mine.schema_id)
            assert mine._replace(changes=[]) == theirs._replace(changes=[])
            for (change, row), (wanted, wanted_row) in zip(mine.changes, theirs.changes, strict=True):
                assert (change, row.keys()) == (wanted, wanted_row.keys())
                assert {
                    name: (row[name], value) for name, value in wanted_row.items() if differs(row[name], value)
                } == {}
        assert len(ours) == len(apache)
        assert self.ours.values() == self.apache.values()
        return ours


def differs(left: Any, right: Any) -> bool:
    """Whether values are different; a number that is none equals itself here."""
    return bool(left != right) and (left == left or right == right)


@pytest.fixture
def pair(
    matrix_server: FlussServer,
    apache_fluss: ApacheFluss,
    new_name: Callable[[str], str],
    record_property: Callable[[str, object], None],
) -> Iterator[Callable[[KeyedTable], Pair]]:
    record_property("clients", [OUR_CLIENT])
    record_property("server", OUR_SERVER)
    with contextlib.ExitStack() as stack:

        def create(table: KeyedTable) -> Pair:
            path = fluss.TablePath("fluss", new_name("changelog"))
            tables = [RawTable(server, path, table.descriptor()) for server in (matrix_server, apache_fluss)]
            return Pair(*(stack.enter_context(found) for found in tables))

        yield create


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("name", TABLES)
def test_random_puts(name: str, pair: Callable[[KeyedTable], Pair], rng: random.Random) -> None:
    table = TABLES[name]
    both = pair(table)
    both.put_all(table, rng)
    assert len(both.check()) > PUTS // 4


def test_numbered_rows(pair: Callable[[KeyedTable], Pair], rng: random.Random) -> None:
    both = pair(AUTO_INCREMENT)
    both.put_all(AUTO_INCREMENT, rng)
    both.check()


def test_bitmaps(pair: Callable[[KeyedTable], Pair], rng: random.Random) -> None:
    both = pair(BITMAPS)
    for _ in range(PUTS):
        numbers = (rng.sample(range(rng.choice([20, 1 << 32])), rng.randrange(20)) for _ in range(3))
        sets = [BitMap(found).serialize() for found in numbers] + [BitMap(range(rng.randrange(100_000))).serialize()]
        both.put(Put([({"k": 1}, {"k": 1, "numbers": found}) for found in [*sets, None]]))
    both.check()


def test_bitmaps_of_64_bits(
    matrix_server: FlussServer, apache_fluss: ApacheFluss, new_name: Callable[[str], str]
) -> None:
    table = replace(BITMAPS, functions={"numbers": AggFunction("rbm64")})
    for name, server in ((OUR_SERVER, matrix_server), (APACHE, apache_fluss)):
        path = fluss.TablePath("fluss", new_name("bitmaps"))
        if expected(OUR_CLIENT, name)["bitmaps_of_64_bits"]:
            with RawTable(server, path, table.descriptor()):
                continue
        with pytest.raises(fluss.FlussError, match="rbm64") as refused:
            RawTable(server, path, table.descriptor())
        assert refused.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_nested_values(pair: Callable[[KeyedTable], Pair]) -> None:
    both = pair(NESTED_TABLE)
    for row in [*NESTED_ROWS, *reversed(NESTED_ROWS)]:
        records = [({"k": key}, {"k": key, **row}) for key in range(3)]
        both.put(Put(records))
        both.put(Put([({"k": 1}, None)]))
    both.put(Put([({"k": 2}, {"k": 2, **dict.fromkeys(NESTED_ROWS[0])})], (0, 1, 2)))
    both.check()


@pytest.mark.parametrize("table", [AUTO_INCREMENT, TABLES["plain"], TABLES["plain, WAL"]])
def test_lookups_insert_what_is_missing(table: KeyedTable, pair: Callable[[KeyedTable], Pair]) -> None:
    both = pair(table)
    keys = [{"k": number} for number in (3, 1, 3, 2)]
    for wanted in (keys, keys[1:], [{"k": 9}, *keys]):
        assert both.ours.insert_missing(wanted) == both.apache.insert_missing(wanted)
    both.put(Put([({"k": 1}, {"k": 1, "a": "x"})], (0, list(table.columns).index("a"))))
    both.check()


def test_puts_before_and_after_an_altered_schema(pair: Callable[[KeyedTable], Pair]) -> None:
    both = pair(TABLES["plain"])
    old = {"k": 1, "a": "old", "b": 1, "c": None}
    both.put(Put([({"k": key}, {**old, "k": key}) for key in range(6)]))
    both.alter([("d", pa.int32()), ("e", pa.string())])
    both.put(Put([({"k": 0}, {**old, "k": 0, "a": "of the old schema"}), ({"k": 1}, None)]))
    both.put(Put([({"k": 2}, {**old, "k": 2, "d": 5, "e": "of the new one"})], schema_id=2))
    both.put(Put([({"k": 3}, {"k": 3, "d": 7})], (0, 4), schema_id=2))
    # A partial update of the old schema keeps what only the new one has.
    both.put(Put([({"k": 2}, {"k": 2, "a": "part"}), ({"k": 4}, {"k": 4, "a": "part"})], (0, 1)))
    both.put(Put([({"k": 2}, None)], (0, 4, 5), schema_id=2))
    both.put(Put([({"k": 5}, None)], (0, 1, 2, 3)))
    both.check()


def test_refused_puts_leave_nothing(pair: Callable[[KeyedTable], Pair]) -> None:
    row = {"k": 1, "a": "x", "b": 1, "c": None}
    plain = pair(TABLES["plain"])
    good = Put([({"k": 1}, row)], writer_id=9_000_003, sequence=0)
    plain.put(good)
    assert plain.put(good._replace(target_columns=(1, 2), sequence=1)).error_code == ErrorCode.INVALID_TARGET_COLUMN
    plain.put(good._replace(sequence=5))
    plain.put(good._replace(sequence=1))
    assert len(plain.check()) == 2
    for name in ("first row", "versioned BIGINT"):
        table = pair(TABLES[name])
        assert table.put(Put([({"k": 1}, {"k": 1, "a": "x"})], (0, 1))).error_code != 0
        assert table.check() == []


def test_columns_and_schemas_that_do_not_exist(pair: Callable[[KeyedTable], Pair]) -> None:
    both = pair(TABLES["plain"])
    good = Put([({"k": 1}, {"k": 1, "a": "x", "b": 1, "c": None})])
    for server, table in ((OUR_SERVER, both.ours), (APACHE, both.apache)):
        known = expected(OUR_CLIENT, server)
        refused = table.put(good._replace(target_columns=(0, 9))).error_code == ErrorCode.INVALID_TARGET_COLUMN
        assert refused == known["unknown_target_column_is_refused"], server
        assert table.put(good._replace(schema_id=7)).error_code == known["unknown_schema_of_a_put_code"], server
        assert len(table.changelog()) == (0 if refused else 1)
