"""The command `fluss sql`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from fluss.cli.main import main
from fluss.sync import FlussTable
from tests.kit.lake.lake import Lake
from tests.kit.lake.unions import tier_fully

ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("item", pa.string()), ("tags", pa.list_(pa.string()))])
WAIT_S = 60.0


def sql(lake: Lake, *arguments: str, typed: str | None = None) -> Result:
    place = ["--bootstrap", lake.address, "--database", lake.database]
    return CliRunner().invoke(main, ["sql", *arguments, *place], input=typed)


def values(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def orders(lake: Lake) -> FlussTable:
    """Ten rows in the lake, two of them changed since, one gone and one new."""
    table = lake.create("orders", ORDERS, keys=["id"], buckets=2)
    with table.new_upsert().create_writer() as writer:
        for number in range(10):
            writer.upsert({"id": number, "item": f"old {number}", "tags": ["a", "[b]"]})
    tier_fully(lake, table)
    with table.new_upsert().create_writer() as writer:
        for number in (3, 4, 10):
            writer.upsert({"id": number, "item": f"new {number}", "tags": None})
        writer.delete({"id": 0})
    return table


@pytest.mark.usefixtures("orders")
def test_outputs(lake: Lake) -> None:
    query = "SELECT id, item, tags FROM orders WHERE id IN (1, 10) ORDER BY id"
    shown = sql(lake, "SELECT id, item FROM orders WHERE id IN (1, 10) ORDER BY id")
    assert shown.exit_code == 0
    assert [line.split() for line in shown.stdout.splitlines()][2:] == [
        ["1", "old", "1"],
        ["10", "new", "10"],
        ["2", "rows"],
    ]
    assert shown.stderr.endswith(" s\n")
    assert values(sql(lake, query, "--output", "json")) == [
        {"id": 1, "item": "old 1", "tags": ["a", "[b]"]},
        {"id": 10, "item": "new 10", "tags": None},
    ]
    assert sql(lake, query, "--output", "csv").stdout.splitlines()[1:] == [
        '1,"old 1","[""a"", ""[b]""]"',
        '10,"new 10",',
    ]
    arrow = pa.ipc.open_stream(sql(lake, query, "--output", "arrow").stdout_bytes).read_all()
    assert arrow["id"].to_pylist() == [1, 10]
    cut = sql(lake, "SELECT * FROM orders", "--limit", "3").stdout
    assert "3 of 10 rows" in cut


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("SELECT count(*) AS n, max(id) AS m FROM orders", [{"n": 10, "m": 10}]),
        ("FROM ORDERS SELECT id WHERE item = 'new 3'", [{"id": 3}]),
        ("SELECT a.id FROM orders a JOIN orders b USING (id) WHERE id > 9", [{"id": 10}]),
        ("WITH x AS (SELECT * FROM orders) SELECT min(id) AS m FROM x", [{"m": 1}]),
        ("PIVOT (SELECT id, item FROM orders WHERE id = 3) ON item USING count(*)", [{"id": 3, "new 3": 1}]),
        ("SELECT column_name AS c FROM (DESCRIBE orders)", [{"c": "id"}, {"c": "item"}, {"c": "tags"}]),
        ("SELECT 1 AS one", [{"one": 1}]),
    ],
)
def test_queries(lake: Lake, query: str, answer: list[dict[str, object]]) -> None:
    assert values(sql(lake, query, "--output", "json")) == answer


def test_each_statement_sees_what_was_there_at_its_start(lake: Lake, orders: FlussTable) -> None:
    query = f'SELECT count(*) AS n FROM "{lake.database}".orders'
    assert values(sql(lake, query, "--output", "json")) == [{"n": 10}]
    with orders.new_upsert().create_writer() as writer:
        writer.upsert({"id": 77, "item": None, "tags": None})
    assert values(sql(lake, query, "--output", "json")) == [{"n": 11}]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM ordres", "There is no table 'ordres' in database '{database}'; near are orders."),
        ("SELECT * FROM flus.orders", "There is no database 'flus'; near are fluss."),
        ("SELECT * FROM zzz", "There is no table 'zzz' in database '{database}'."),
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"'),
        ("SELECT nothing FROM orders", 'Binder Error: Referenced column "nothing" not found in FROM clause!'),
        ("SELECT CAST(item AS INT) FROM orders", "Conversion Error: Could not convert"),
        ("SELECT * FROM 'nowhere.parquet'", "IO Error: No files found that match"),
    ],
)
def test_mistakes_are_one_line(lake: Lake, query: str, message: str) -> None:
    result = sql(lake, query)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"fluss sql: {message.format(database=lake.database)}")


def test_no_server_and_no_database(lake: Lake) -> None:
    gone = CliRunner().invoke(main, ["sql", "SELECT 1", "--bootstrap", "127.0.0.1:1"])
    assert gone.exit_code == 1
    assert len(gone.stderr.splitlines()) == 1
    unknown = CliRunner().invoke(main, ["sql", "SELECT 1", "--bootstrap", lake.address, "--database", "flus"])
    assert unknown.stderr == "fluss sql: There is no database 'flus'; near are fluss.\n"


@pytest.mark.usefixtures("orders")
def test_statements_from_standard_input(lake: Lake) -> None:
    typed = (
        "CREATE TABLE kept AS SELECT * FROM orders;\n\n"
        "CREATE VIEW big AS SELECT * FROM orders\n  WHERE id > 8;\n"
        "SELECT ';\n' AS mark;\n\\d orders\n\\d\nSELECT count(*) AS n\nFROM kept, big"
    )
    result = sql(lake, "--output", "json", typed=typed)
    rows = values(result)
    assert {"mark": ";\n"} in rows
    assert {"column": "id", "type": "bigint NOT NULL", "key": "primary key", "comment": None} in rows
    assert {"database": lake.database, "table": "orders"} in rows
    assert rows[-1] == {"n": 20}


@pytest.mark.usefixtures("orders")
def test_words_of_other_shells(lake: Lake) -> None:
    result = sql(lake, "-o", "json", typed=".tables\nhelp;\n\\h\n\\dt\n\\d orders\n.quit\nSELECT * FROM zzz;\n")
    assert values(result).count({"database": lake.database, "table": "orders"}) == 2
    assert result.stderr.count(r"\q leaves") == 2
    assert len(values(sql(lake, "-o", "json", "-n", "3", "FROM orders"))) == 3


def test_standard_input_ends_at_the_first_mistake(lake: Lake) -> None:
    for mistake in ("SELECT * FROM zzz;", "\\d zzz", "\\x"):
        result = sql(lake, typed=f"{mistake}\nSELECT 5;\n")
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("fluss sql: There is no ")
    assert sql(lake, typed="\\q\nSELECT * FROM zzz;\n").exit_code == 0


@pytest.mark.usefixtures("orders")
def test_the_prompt(lake: Lake, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from fluss.cli.main import main; main()", "sql"]
    place = ["--bootstrap", lake.address, "--database", lake.database]
    process = subprocess.Popen(
        [*command, *place],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"},
    )
    os.close(theirs)
    output = b""
    for line, wanted in (
        (b"SELECT * FROM ordres;\n", b"near are orders"),
        (b"SELECT count(*) + 1000\n", b"... "),
        (b"FROM orders;\n", b"1010"),
        (b"\\d orders\n", b"primary key"),
    ):
        output = _until(ours, output, b"fluss> " if b"..." not in output else b"")
        os.write(ours, line)
        output = _until(ours, b"", wanted)
    os.write(ours, b"\\q\n")
    assert process.wait(WAIT_S) == 0
    os.close(ours)
    assert "FROM orders;" in (tmp_path / "flussbett" / "sql_history").read_text()


def _until(terminal: int, output: bytes, wanted: bytes) -> bytes:
    while wanted not in output:
        output += os.read(terminal, 1_000)
    return output


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {name!r}:
            raise ImportError("missing", name=name.split(".")[0])

sys.meta_path.insert(0, Missing())
"""


def without(name: str, code: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(name=name) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S)


def test_without_duckdb(lake: Lake) -> None:
    arguments = ["sql", "SELECT 1", "--bootstrap", lake.address]
    result = without("duckdb", f"from fluss.cli.main import main; main({arguments!r})")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "fluss sql: duckdb is not installed; install flussbett[lake].\n"


def test_without_pyiceberg(lake: Lake, orders: FlussTable) -> None:
    dry = lake.create("dry", ORDERS)
    with dry.new_append().create_writer() as writer:
        writer.append({"id": 1, "item": None, "tags": None})
    code = f"""
import fluss.sync
with fluss.sync.connect({lake.address!r}) as connection:
    union = lambda name: connection.get_table(fluss.sync.TablePath({lake.database!r}, name)).new_scan().union()
    print(union("dry").to_arrow().num_rows, union("dry").to_duckdb().fetchall())
    try:
        union("orders").to_arrow()
    except fluss.sync.FlussError as error:
        print(error)
"""
    result = without("pyiceberg", code)
    assert result.stderr == ""
    assert result.stdout == "1 [(1, None, None)]\npyiceberg is not installed; install flussbett[lake].\n"


def test_the_changelog_of_a_table_is_a_table(lake: Lake, orders: FlussTable) -> None:
    shown = values(
        sql(lake, "SELECT * FROM orders$changelog WHERE id IN (3, 0, 10) ORDER BY id, _log_offset", "-o", "json")
    )
    assert list(shown[0]) == ["_change_type", "_log_offset", "_commit_timestamp", "id", "item", "tags"]
    assert [(row["id"], row["_change_type"], row["item"]) for row in shown] == [
        (0, "insert", "old 0"),
        (0, "delete", "old 0"),
        (3, "insert", "old 3"),
        (3, "update_before", "old 3"),
        (3, "update_after", "new 3"),
        (10, "insert", "new 10"),
    ]
    assert all(row["_commit_timestamp"] for row in shown)
    log = lake.create("events", pa.schema([("day", pa.string()), ("n", pa.int64())]), partition_keys=["day"])
    query = 'SELECT _change_type, _log_offset, n FROM "events$CHANGELOG" ORDER BY n'
    assert values(sql(lake, query, "-o", "json")) == []
    for day in ("a", "b"):
        lake.connection.get_admin().create_partition(log.table_path, {"day": day})
    with log.new_append().create_writer() as writer:
        writer.append(["a", 1])
        writer.append(["b", 2])
    assert values(sql(lake, query, "-o", "json")) == [
        {"_change_type": "insert", "_log_offset": 0, "n": 1},
        {"_change_type": "insert", "_log_offset": 0, "n": 2},
    ]


@pytest.mark.usefixtures("orders")
def test_the_binlog_of_a_table_has_both_sides_of_a_change(lake: Lake) -> None:
    query = """SELECT coalesce(before.id, after.id) AS id, _change_type AS what, before.item AS old, after.item AS new
        FROM orders$binlog WHERE coalesce(before.id, after.id) IN (0, 3, 10) ORDER BY id, _log_offset"""
    assert values(sql(lake, query, "-o", "json")) == [
        {"id": 0, "what": "insert", "old": None, "new": "old 0"},
        {"id": 0, "what": "delete", "old": "old 0", "new": None},
        {"id": 3, "what": "insert", "old": None, "new": "old 3"},
        {"id": 3, "what": "update", "old": "old 3", "new": "new 3"},
        {"id": 10, "what": "insert", "old": None, "new": "new 10"},
    ]
    whole = values(
        sql(lake, "SELECT count(*) AS n, count(before) AS b, count(after) AS a FROM orders$binlog", "-o", "json")
    )
    assert whole == [{"n": 14, "b": 3, "a": 13}]


def test_virtual_tables_that_there_are_not(lake: Lake) -> None:
    lake.create("log", pa.schema([("n", pa.int64())]))
    for query, said in (
        ("FROM log$binlog", "has no primary key, so it has no binlog; log$changelog has its rows"),
        ("FROM nothing$changelog", "There is no table 'nothing$changelog'"),
        ("FROM log$diary", "There is no table 'log$diary'"),
    ):
        result = sql(lake, query)
        assert result.exit_code == 1
        assert said in result.stderr
    described = sql(lake, typed="\\d log$changelog\n")
    assert "is made of the log of" in described.stderr
