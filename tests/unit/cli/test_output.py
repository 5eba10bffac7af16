"""What commands print."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from click.testing import CliRunner

from fluss.cli.text.output import plain, texts, write_batches

TABLE = pa.table(
    {
        "id": pa.array([1, 20, None], pa.int32()),
        "name": ["ada", "日本", "a\nb\x1b[31m"],
        "money": pa.array([Decimal("1.50"), None, Decimal("-3.00")], pa.decimal128(5, 2)),
        "at": pa.array([0, 1_000_000, None], pa.timestamp("us", "UTC")),
        "tags": [["x"], None, []],
    }
)


def printed(table: pa.Table, output: str, **options: int) -> bytes:
    import click

    @click.command()
    def command() -> None:
        write_batches(table.schema, table.to_batches(), output, **options)

    return CliRunner().invoke(command, catch_exceptions=False).stdout_bytes


def test_a_table_for_people() -> None:
    assert printed(TABLE, "table").decode().splitlines() == [
        "  id  name          money  at                    tags",
        "────  ────────────  ─────  ────────────────────  ─────",
        '   1  ada            1.50  1970-01-01 00:00:00Z  ["x"]',
        "  20  日本           NULL  1970-01-01 00:00:01Z  NULL",
        "NULL  a\\nb\\x1b[31m  -3.00  NULL                  []",
        "3 rows",
    ]


def test_limits() -> None:
    many = pa.table({"n": range(250)})
    assert printed(many, "table").decode().splitlines()[-1] == "100 of 250 rows (--limit 0 prints all)"
    assert printed(many, "table", limit=0).decode().splitlines()[-2:] == ["249", "250 rows"]
    assert printed(many, "table", limit=5, count_rest=False).decode().endswith("(--limit 0 prints all)\n")
    assert printed(many, "table", limit=5, total=999).decode().splitlines()[-1].startswith("5 of 999 rows")
    assert len(printed(many, "json").splitlines()) == 250
    assert len(printed(many, "json", limit=7).splitlines()) == 7
    assert printed(many.slice(0, 0), "table").decode().splitlines() == ["n", "─", "0 rows"]


def test_json_lines() -> None:
    first, second, third = map(json.loads, printed(TABLE, "json").decode().splitlines())
    assert first == {"id": 1, "name": "ada", "money": "1.50", "at": "1970-01-01 00:00:00.000000Z", "tags": ["x"]}
    assert second["name"] == "日本"
    assert third["name"] == "a\nb\x1b[31m"


def test_csv_tells_empty_from_null() -> None:
    text = printed(pa.table({"a": ["", None, 'q"'], "b": [1.5, None, 2]}), "csv").decode()
    assert text.splitlines() == ['"a","b"', '"",1.5', ",", '"q""",2']


def test_arrow() -> None:
    assert pa.ipc.open_stream(io.BytesIO(printed(TABLE, "arrow"))).read_all() == TABLE


def test_long_cells_are_cut() -> None:
    lines = printed(pa.table({"t": ["x" * 500, "日" * 500]}), "table").decode().splitlines()
    assert lines[2] == "x" * 59 + "…"
    assert lines[3] == "日" * 29 + "…"


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([float("nan"), float("inf"), -float("inf"), 1.5]), ["NaN", "Infinity", "-Infinity", 1.5]),
        (pa.array([0.1], pa.float32()), [0.1]),
        (pa.array([b"\x00\xff", None]), ["00ff", None]),
        (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8())), [{"a": 1}, None]),
        (pa.array([[(1, "a")]], pa.map_(pa.int8(), pa.string())), [[[1, "a"]]]),
        (pa.array([[1], [2, 3], None])[1:], [[2, 3], None]),
        (pa.array([{"x": 1}, None, {"x": 3}])[1:], [None, {"x": 3}]),
        (pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int8()))[1:], [{"b": 2}]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([[[0]], [None]], pa.list_(pa.list_(pa.timestamp("s")))), [[["1970-01-01 00:00:00"]], [None]]),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001"]),
    ],
)
def test_plain_values(column: pa.Array, values: list[object]) -> None:
    assert plain(column) == values


def test_texts() -> None:
    assert texts(pa.array([True, None])) == ["true", None]
    assert texts(pa.array([1_500, 2_000], pa.timestamp("ms"))) == ["1970-01-01 00:00:01.500", "1970-01-01 00:00:02.000"]


CODE = """
import pyarrow as pa
from fluss.cli.text.output import write_batches
table = pa.table({f"column{n}": ["some longer text"] * 2 for n in range(20)})
write_batches(table.schema, table.to_batches(), OUTPUT)
"""


@pytest.mark.parametrize("output", ["table", "arrow"])
def test_a_terminal(output: str) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "70", "LINES": "24"}
    code = CODE.replace("OUTPUT", repr(output))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=subprocess.PIPE, text=True, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 10_000):
            shown += part
    except OSError:
        pass  # the other end is closed
    _, problem = process.communicate(timeout=60)
    os.close(ours)
    if output == "arrow":
        assert shown == b""
        assert "not for a terminal" in problem
        return
    import re

    lines = re.sub("\x1b\\[[0-9;]*m", "", shown.decode()).splitlines()
    assert max(map(len, lines[:-1])) <= 70
    assert "13 more columns" in lines[-1]
    assert "some lo…" in lines[2]
