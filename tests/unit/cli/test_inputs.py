"""Rows from files: every format, and mistakes that are named by file, row and column."""

from __future__ import annotations

import gzip
import io
import random
import signal
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.cli.text.file_process import BATCH_ROWS_MAX
from fluss.cli.text.inputs import Input, read_json_lines
from fluss.model.errors import FlussError
from tests.kit.mutations import mutated

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("text", pa.string()),
        ("money", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("ns")),
        ("clock", pa.time32("ms")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ratio", pa.float32()),
        ("yes", pa.bool_()),
        ("times", pa.list_(pa.timestamp("ms"))),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("pair", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
WITHOUT_MAP = pa.schema([field for field in SCHEMA if field.name != "counts"])
ROW = (
    '{"id": 1, "small": 2, "text": "2026-01-01", "money": 1.25, "at": "2026-01-01 12:00:00+01:00", '
    '"local": "2026-01-01T01:02:03.123456789", "clock": "12:30:01.5", "day": "2026-01-31", "raw": "00ff", '
    '"ratio": 0.5, "yes": true, "times": ["2026-01-01 00:00:00", null], "pair": {"x": 1, "y": "z"}}\n'
)


def read(path: Path, schema: pa.Schema, **options: Any) -> pa.Table:
    return pa.Table.from_batches(list(Input(str(path), **options).batches(schema)), schema)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def as_text(table: pa.Table) -> dict[str, Any]:
    from fluss.cli.text.output import plain

    return {name: plain(table.column(name).combine_chunks())[0] for name in table.schema.names}


EXPECTED = {
    "id": 1,
    "small": 2,
    "text": "2026-01-01",
    "money": "1.25",
    "at": "2026-01-01 11:00:00.000000Z",
    "local": "2026-01-01 01:02:03.123456789",
    "clock": "12:30:01.500",
    "day": "2026-01-31",
    "raw": "00ff",
    "ratio": 0.5,
    "yes": True,
    "times": ["2026-01-01 00:00:00.000", None],
    "pair": {"x": 1, "y": "z"},
}


def test_json_lines_by_arrow_and_by_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", ROW + "\n" + '{"id": 2}\n')
    by_arrow = read(path, WITHOUT_MAP)
    assert as_text(by_arrow) == EXPECTED
    # Arrow can't read maps, so all of it is read line by line.
    by_line = read(path, SCHEMA)
    assert by_line.drop_columns("counts").equals(by_arrow)
    assert by_line.column("counts").null_count == by_line.num_rows == 2


def test_maps_are_objects_or_pairs(tmp_path: Path) -> None:
    lines = '{"id": 1, "counts": {"a": 1}}\n{"id": 2, "counts": [["b", null]]}\n{"id": 3}\n'
    table = read(written(tmp_path / "a.json", lines), SCHEMA)
    assert table.column("counts").to_pylist() == [[("a", 1)], [("b", None)], None]


def test_csv(tmp_path: Path) -> None:
    text = (
        "id;text;money;at;clock;raw;times;counts;pair\n"
        '1;"";1.2;2026-01-01;12:30;00ff;"[""2026-01-01""]";"{""a"": 1}";"{""x"": 1}"\n'
        "2;;;;;;;;\n"
    )
    table = read(written(tmp_path / "a.csv", text), SCHEMA, delimiter=";")
    first, second = table.to_pylist()
    assert (first["text"], second["text"]) == ("", None)
    assert str(first["at"]) == "2026-01-01 00:00:00+00:00"
    assert first["counts"] == [("a", 1)]
    assert first["pair"] == {"x": 1, "y": None}
    assert first["raw"] == b"\x00\xff"


def test_parquet_arrow_and_compressed_files(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(BATCH_ROWS_MAX + 1), pa.int32())})
    wanted = pa.schema([("id", pa.int64())])
    pq.write_table(rows, tmp_path / "a.parquet")
    assert Input(str(tmp_path / "a.parquet")).row_count() == rows.num_rows
    for name, new in (("a.arrow", pa.ipc.new_file), ("b.arrow", pa.ipc.new_stream)):
        with new(str(tmp_path / name), rows.schema) as writer:
            writer.write_table(rows)
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("id\n" + "\n".join(map(str, range(rows.num_rows))))
    for name in ("a.parquet", "a.arrow", "b.arrow", "a.csv.gz"):
        source = Input(str(tmp_path / name))
        batches = list(source.batches(wanted))
        assert max(batch.num_rows for batch in batches) <= BATCH_ROWS_MAX
        assert pa.Table.from_batches(batches) == rows.cast(wanted), name


def test_lines_are_read_as_they_come() -> None:
    class Pipe(io.RawIOBase):
        parts: ClassVar = [b'{"id": 1}\n{"i', b'd": 2}\n', b'{"id": 3}']

        def read1(self, size: int) -> bytes:
            return self.parts.pop(0) if self.parts else b""

    reading = read_json_lines(Pipe(), pa.schema([("id", pa.int64())]), 1 << 20)  # type: ignore[arg-type]
    assert [batch.to_pylist() for batch in reading] == [[{"id": 1}], [{"id": 2}], [{"id": 3}]]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "a.jsonl",
            '{"id": 1}\n\n{"id": "x"}\n',
            """a.jsonl, line 3, column 'id': 'x' is not a value of type bigint.""",
        ),
        (
            "a.jsonl",
            '{"id": 1}\n\n{"id": null}\n',
            "line 3, column 'id': there is no value, but the column is NOT NULL",
        ),
        (
            "a.jsonl",
            '{"id": 1}\n\n{"id": 2, "small": 300}\n',
            "line 3, column 'small': 300 is not a value of type tinyint",
        ),
        ("a.jsonl", '{"id": 1, "small": 1.5}\n', "line 1, column 'small'"),
        ("a.jsonl", '{"id": 1, "small": true}\n', "line 1, column 'small'"),
        ("a.jsonl", '{"id": 1, "text": 5}\n', "line 1, column 'text'"),
        ("a.jsonl", '{"id": 1, "money": 1.234}\n', "line 1, column 'money'"),
        ("a.jsonl", '{"id": 1, "at": "soon"}\n', "line 1, column 'at': 'soon' is not a value of type timestamp_ltz"),
        ("a.jsonl", '{"id": 1, "pair": {"z": 2}}\n', """column 'pair': {"z": 2} is not a value of type row<"""),
        ("a.jsonl", '{"id": 1, "times": 5}\n', "line 1, column 'times'"),
        ("a.jsonl", '{"id": 1}\n{"id": 1, "txt": 5}\n', "there is no column 'txt' to write to. Did you mean text?"),
        ("a.jsonl", '{"id": 1}\n{"id": \n', "line 2: this is not JSON"),
        ("a.jsonl", "[1]\n", "line 1: there must be one JSON object per line"),
        ("a.jsonl", "null\n", "line 1: there must be one JSON object per line"),
        ("a.jsonl", '{"id": 1}\nnull\n', "line 2: there must be one JSON object per line"),
        ("a.jsonl", '{"id": 1} null {"id": 2}\n', "line 1: this is not JSON"),
        ("a.jsonl", '{"id": 1} {"id": 2}\n', "line 1: this is not JSON"),
        ("a.csv", "id,text\n1,x\nzz,y\n", "a.csv, row 2, column 'id': 'zz' is not a value of type bigint"),
        ("a.csv", "id,text\n1,x\n2,y,z\n", "Expected 2 columns, got 3"),
        ("a.csv", "id,raw\n1,xyz\n", "row 1, column 'raw': 'xyz' is not a value of type bytes"),
        ("a.csv", "id,id\n1,1\n", "'id' is there twice"),
        ("a.parquet", "id", "can't be read as parquet"),
        ("a.arrow", "id", "can't be read as arrow"),
        ("a.xyz", "id", "--format"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = written(tmp_path / name, text)
    for schema in (SCHEMA, WITHOUT_MAP):
        with pytest.raises(FlussError) as caught:
            read(path, schema)
        assert problem in caught.value.message.replace(f"{tmp_path}/", "")
        assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_empty_files_have_no_rows(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, "")
    assert read(path, SCHEMA).num_rows == 0
    with pytest.raises(FlussError, match="it has no rows to tell types from"):
        Input(str(path)).schema()


def test_large_cells(tmp_path: Path) -> None:
    cell = "x" * 10_000_000
    table = read(written(tmp_path / "a.csv", f"id,text\n1,{cell}\n2,{cell}\n"), SCHEMA)
    assert table.column("text").to_pylist() == [cell, cell]


@pytest.mark.parametrize("text", ["null\n", '{"id": 1}\nnull\n', "[1]\n"])
def test_no_types_are_told_from_what_is_no_object(tmp_path: Path, text: str) -> None:
    with pytest.raises(FlussError, match="there must be one JSON object per line"):
        Input(str(written(tmp_path / "a.jsonl", text))).schema()


@pytest.mark.parametrize("content", [b'{"id": 1, "text": "\xff"}\n', b'{"\xff": 1}\n'])
def test_what_is_not_utf8_is_not_stored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(FlussError, match="line 1: this is not JSON"):
        read(tmp_path / "a.jsonl", WITHOUT_MAP)
    (tmp_path / "a.csv").write_bytes(b"id,t\xff\n1,2\n")
    with pytest.raises(FlussError, match="can't be read as csv"):
        read(tmp_path / "a.csv", SCHEMA)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_reader_that_dies_is_an_error(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = popen(*arguments, **options)
        process.send_signal(signal.SIGSEGV)
        return process

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", started)
    path = written(tmp_path / name, "id")
    with pytest.raises(FlussError, match=f"{name} can't be read as .*SIGSEGV"):
        read(path, SCHEMA)


def test_texts_of_files_are_checked(tmp_path: Path) -> None:
    """Arrow files may have texts that are no UTF-8."""
    texts = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), pa.schema([("text", pa.string())])) as writer:
        writer.write_batch(pa.record_batch({"text": texts}))
    with pytest.raises(FlussError, match="UTF8"):
        read(tmp_path / "a.arrow", pa.schema([("text", pa.string())]))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.arrow", "a.parquet"])
def test_damaged_files_are_errors_or_rows(tmp_path: Path, name: str, chance: random.Random) -> None:
    whole = {
        "a.jsonl": (ROW + '{"id": 2}\n').encode(),
        "a.csv": b'id,text,money,at,raw\n1,"a ""b""\nc",1.25,2026-01-01T00:00:00Z,00ff\n2,,,,\n',
    }
    rows = pa.table({"id": pa.array([1, 2]), "text": ["a", None]})
    pq.write_table(rows, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), rows.schema) as writer:
        writer.write_table(rows)
    path = tmp_path / name
    content = whole.get(name) or path.read_bytes()
    for _ in range(5 if name in ("a.arrow", "a.parquet") else 300):
        damaged = mutated(content, chance)
        path.write_bytes(damaged)
        try:
            found = read(path, WITHOUT_MAP)
        except FlussError:
            continue
        found.validate(full=True)
        if name == "a.jsonl":
            assert found.num_rows == sum(1 for line in damaged.split(b"\n") if line.strip())


def test_the_bad_row_of_a_large_file(tmp_path: Path) -> None:
    lines = [f"{number},t" for number in range(100_000)]
    lines[87_654] = "no,t"
    with pytest.raises(FlussError, match="row 87,655, column 'id': 'no' is not a value of type bigint"):
        read(written(tmp_path / "a.csv", "id,text\n" + "\n".join(lines)), SCHEMA)
