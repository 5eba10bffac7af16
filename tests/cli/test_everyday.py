"""The everyday commands as processes, on good and on bad input."""

from __future__ import annotations

import datetime as dt
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fluss.sync as fs
from fluss.testing import FlussServer
from tests.kit.command import environment, fluss, here, started

NOBODY = "127.0.0.1:1"


def good(*arguments: str | Path, server: str, **options: Any) -> str:
    done = fluss(*arguments, bootstrap=server, **options)
    assert (done.returncode, done.stderr) == (0, ""), arguments
    return done.stdout


def quick(*arguments: str | Path, server: str, **options: Any) -> str:
    done = here(*arguments, bootstrap=server, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_databases(server: str) -> None:
    assert good("database", "create", "made", "--comment", "by hand", server=server) == "database made created\n"
    listed = lines(good("database", "list", "-o", "json", server=server))
    assert {"database": "made", "tables": 0} in listed
    assert "by hand" in quick("database", "describe", "made", server=server)
    assert quick("database", "drop", "made", "--yes", server=server) == "database made dropped\n"
    quick("database", "create", "full", server=server)
    quick("table", "create", "full.a", "--schema", "id int", server=server)
    assert quick("database", "drop", "full", "--cascade", "--yes", server=server) == (
        "database full dropped with 1 table\n"
    )


def test_a_table_is_created_altered_defined_created_again_and_dropped(server: str, tmp_path: Path) -> None:
    columns = "id int, name string comment 'full', scores map<string, array<double>>, primary key (id)"
    arguments = ("--buckets", "3", "--property", "table.log.ttl=7d", "--property", "owner=shop", "--comment", "a copy")
    good("table", "create", "shop.first", "--schema", columns, *arguments, server=server)
    quick("table", "alter", "shop.first", "--add-column", "note string", server=server)
    definition = good("table", "define", "shop.first", server=server)
    file = tmp_path / "first.toml"
    file.write_text(definition)
    quick("table", "create", "shop.second", "--file", file, server=server)
    assert quick("table", "define", "shop.second", server=server) == definition
    described = quick("table", "describe", "shop.second", server=server)
    for text in ("shop.second", "map<string not null, array<double>>", "owner", "a copy", "note", "after 7d"):
        assert text in described
    assert quick("table", "drop", "shop.second", input="y\n", server=server) == "table shop.second dropped\n"
    assert "shop.second" not in quick("table", "list", "shop", server=server)


def test_a_table_is_created_like_a_file_and_gets_its_rows(server: str, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.uint16()), "at": pa.array([1, None], pa.timestamp("us", "UTC"))})
    file = tmp_path / "rows.parquet"
    pq.write_table(rows, file)
    quick("table", "create", "shop.like", "--from", file, "--bucket-key", "id", server=server)
    assert good("append", "shop.like", file, server=server).startswith("2 rows appended to shop.like")
    read = quick("scan", "shop.like", "-o", "json", server=server)
    assert lines(read) == [{"id": 1, "at": "1970-01-01 00:00:00.000001Z"}, {"id": 2, "at": None}]


def test_rows_go_in_and_out_in_every_format(server: str, tmp_path: Path) -> None:
    quick(
        "table", "create", "shop.round", "--schema", "id bigint, d decimal(9,2), l array<int>, b bytes", server=server
    )
    given = '{"id": 1, "d": "1.50", "l": [1, null], "b": "00ff"}\n{"id": 2, "d": null, "l": null, "b": null}\n'
    good("append", "shop.round", "--format", "json", input=given, server=server)
    assert lines(quick("scan", "shop.round", "-o", "json", server=server)) == lines(given)
    text = quick("scan", "shop.round", "-o", "csv", server=server)
    file = tmp_path / "round.csv"
    file.write_text(text)
    quick("append", "shop.round", file, server=server)
    assert lines(quick("scan", "shop.round", "-o", "json", server=server)) == lines(given) * 2


def test_arrow_for_programs(server: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fluss", "scan", "shop.orders", "-o", "arrow", "--limit", "7", "-b", server],
        capture_output=True,
        timeout=120,
        env=environment(),
    )
    assert pa.ipc.open_stream(io.BytesIO(done.stdout)).read_all().column("id").to_pylist() == list(range(7))


def test_scan_for_people(server: str) -> None:
    shown = good("scan", "shop.orders", "--columns", "day,id", "--limit", "2", server=server)
    assert shown.splitlines() == [
        "day         id",
        "──────────  ──",
        "2026-01-01   0",
        "2026-01-02   1",
        "2 of 5,000 rows (--limit 0 prints all)",
    ]
    filtered = quick("scan", "shop.orders", "--filter", "id between 7 and 8", "--columns", "id", server=server)
    assert filtered.splitlines()[2:] == [" 7", " 8", "2 rows"]


def test_primary_key_tables(server: str, tmp_path: Path) -> None:
    schema = "id int, name string, city string, primary key (id)"
    quick("table", "create", "shop.people", "--schema", schema, server=server)
    people = tmp_path / "people.csv"
    people.write_text("id,name,city\n1,Ada,London\n2,Bob,\n3,Cyd,Oslo\n")
    good("upsert", "shop.people", people, server=server)
    cities = '{"id": 2, "city": "Rome"}'
    quick("upsert", "shop.people", "--format", "json", "--columns", "id,city", input=cities, server=server)
    assert good("delete", "shop.people", "--key", "id=3", server=server).startswith("1 row deleted")
    found = lines(good("lookup", "shop.people", "id=2", "-o", "json", server=server))
    assert found == [{"id": 2, "name": "Bob", "city": "Rome"}]
    history = good("changes", "shop.people", "--from", "earliest", "--no-follow", "-o", "json", server=server)
    kinds = [(row["_change_type"], row["_log_offset"], row["id"]) for row in lines(history)]
    assert kinds == [("+I", 0, 1), ("+I", 1, 2), ("+I", 2, 3), ("-U", 3, 2), ("+U", 4, 2), ("-D", 5, 3)]
    now = lines(quick("changes", "shop.people", "--no-follow", "--columns", "id", "-o", "json", server=server))
    assert [row["id"] for row in now] == [1, 2]
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n1\n9\n")
    done = here("lookup", "shop.people", "--file", keys, "-o", "csv", bootstrap=server)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == ['1,"Ada","London"']
    assert done.stderr == "fluss lookup: 1 of 2 keys have no row in shop.people.\n"


def test_lookup_by_prefix(server: str) -> None:
    found = quick("lookup", "shop.customers", "region=EU", "--prefix", "-o", "csv", server=server)
    assert found.splitlines()[1:] == ['"EU",1,"name 1"', '"EU",3,"name 3"']


def test_keys_that_are_not_there_are_not_deleted(server: str) -> None:
    quick("table", "create", "shop.keyed", "--schema", "id int, primary key (id)", server=server)
    quick("upsert", "shop.keyed", "--format", "json", input='{"id": 1}\n{"id": 2}\n', server=server)
    assert quick("delete", "shop.keyed", "--key", "id=9", server=server).startswith("0 rows deleted from")
    keys = "id\n1\n9\n"
    assert quick("delete", "shop.keyed", "--format", "csv", input=keys, server=server).startswith("1 row deleted from")
    assert lines(quick("scan", "shop.keyed", "-n", "5", "-o", "json", server=server)) == [{"id": 2}]


def test_when_rows_expire_is_described(server: str) -> None:
    lake = ("--property", "table.datalake.enabled=true")
    for name, arguments, expiry in (
        ("kept", ("--schema", "id int"), {"rows expire": "never"}),
        ("tiered", ("--schema", "id int", *lake), {"rows expire": "after 7 d, once they are in the lake"}),
        ("changed", ("--schema", "id int, primary key (id)"), {"changes expire": "after 7 d"}),
    ):
        quick("table", "create", f"shop.{name}", *arguments, server=server)
        described = json.loads(quick("table", "describe", f"shop.{name}", "-o", "json", server=server))
        assert {key: value for key, value in described.items() if "expire" in key} == expiry


def test_times_are_in_utc(server: str) -> None:
    """Wherever the reader is: by scan, sql, filters and --from alike."""
    zone = {"TZ": "America/New_York"}
    quick("table", "create", "shop.times", "--schema", "z timestamp_ltz(6)", server=server)
    texts = '{"z": "2026-07-01 12:00:00"}\n{"z": "2026-07-01 12:00:00+02:00"}\n'
    fluss("append", "shop.times", "--format", "json", bootstrap=server, input=texts, variables=zone)
    expected = [{"z": "2026-07-01 12:00:00.000000Z"}, {"z": "2026-07-01 10:00:00.000000Z"}]
    for command in (
        ("scan", "shop.times"),
        ("scan", "shop.times", "--filter", "z >= '2026-07-01 10:00:00'"),
        ("sql", "FROM shop.times WHERE z >= '2026-07-01 10:00:00' ORDER BY z DESC"),
        ("sql", "SELECT TIMESTAMPTZ '2026-07-01 12:00' AS z UNION ALL SELECT TIMESTAMPTZ '2026-07-01 12:00+02'"),
    ):
        assert lines(fluss(*command, "-o", "json", bootstrap=server, variables=zone).stdout) == expected
    before = f"{dt.datetime.now(dt.UTC) - dt.timedelta(hours=2):%Y-%m-%d %H:%M}"
    tail = ("tail", "shop.times", "--no-follow", "-o", "json", "--from", before)
    assert lines(fluss(*tail, bootstrap=server, variables=zone).stdout) == expected


def test_partitions_of_numbers(server: str) -> None:
    quick("table", "create", "shop.by_id", "--schema", "id int, x date", "--partition-key", "id,x", server=server)
    for spec in (("id=abc", "x=2026-01-31"), ("id=007", "x=2026-01-31"), ("id=9999999999", "x=2026-01-31")):
        refused = here("partition", "create", "shop.by_id", *spec, bootstrap=server)
        assert refused.returncode == 1
        assert f"The value {spec[0][3:]!r} of partition column 'id' is not of type int." in refused.stderr
    quick("partition", "create", "shop.by_id", "id=-5", "x=2026-01-31", server=server)
    (row,) = lines(quick("partition", "list", "shop.by_id", "-o", "json", server=server))
    assert {**row, "partition_id": 0} == {
        "partition": "-5$2026-01-31",
        "partition_id": 0,
        "id": "-5",
        "x": "2026-01-31",
    }


def test_partitions_and_offsets(server: str) -> None:
    good("partition", "create", "shop.visits", "day=2026-02-01", server=server)
    assert "2026-02-01" in quick("partition", "list", "shop.visits", server=server)
    rows = '{"id": 5, "day": "2026-02-01"}\n{"id": 6, "day": "2026-02-02"}\n'
    quick("append", "shop.visits", "--format", "json", "--create-partitions", input=rows, server=server)
    offsets = good("offsets", "shop.visits", "--at", "2020-01-01", "-o", "csv", server=server)
    assert offsets.splitlines() == [
        '"partition","bucket","earliest","latest","at","kept"',
        '"2026-01-31",0,0,1,0,1',
        '"2026-02-01",0,0,1,0,1',
        '"2026-02-02",0,0,1,0,1',
    ]
    one = quick("scan", "shop.visits", "--partition", "day=2026-02-02", "-o", "json", server=server)
    assert lines(one) == [{"id": 6, "day": "2026-02-02"}]
    dropped = quick("partition", "drop", "shop.visits", "day=2026-02-02", "--yes", server=server)
    assert dropped == "partition day=2026-02-02 of shop.visits dropped\n"


def test_tail_follows_until_it_is_interrupted(server: str) -> None:
    quick("table", "create", "shop.live", "--schema", "id int, name string", server=server)
    with fs.connect(server) as connection:
        table = connection.get_table(fs.TablePath("shop", "live"))
        writer = table.new_append().create_writer()
        for number in range(3):
            writer.append((number, "before"))
        writer.flush()
        arguments = ("tail", "shop.live", "-n", "2", "--filter", "name <> 'no'", "--columns", "id", "-o", "json")
        with started(*arguments, bootstrap=server) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert [process.stdout.readline() for _ in range(2)] == ['{"id": 1}\n', '{"id": 2}\n']
            for row in ((3, "no"), (4, "yes")):
                writer.append(row)
            writer.flush()
            assert process.stdout.readline() == '{"id": 4}\n'
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_tail_finds_partitions_that_come_later(server: str) -> None:
    arguments = ("tail", "shop.visits", "--from", "earliest", "--columns", "day", "--limit", "2", "-o", "json")
    quick("table", "create", "shop.days", "--schema", "day string", "--partition-key", "day", server=server)
    with started(*(name.replace("visits", "days") for name in arguments), bootstrap=server) as process:
        assert process.stdout is not None
        for day in ("d1", "d2"):
            quick(
                "append",
                "shop.days",
                "--format",
                "json",
                "--create-partitions",
                input=f'{{"day": "{day}"}}',
                server=server,
            )
            assert process.stdout.readline() == f'{{"day": "{day}"}}\n'
        assert process.wait(60) == 0


def test_a_closed_pipe_ends_quietly(server: str) -> None:
    with started("scan", "shop.orders", "-o", "json", bootstrap=server) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["id"] == 0
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == ""


BAD = [
    (("table", "list", "shp"), "", "Did you mean shop?"),
    (("table", "describe", "shop.order"), "", "Did you mean shop.orders?"),
    (("table", "create", "shop.x", "--schema", "id foo"), "", "position 4"),
    (("table", "create", "nowhere.x", "--schema", "id int"), "", "fluss database create nowhere"),
    (("table", "create", "shop.orders", "--schema", "id int"), "", "exists"),
    (("table", "alter", "shop.orders", "--set", "table.nonsense=1"), "", "table.nonsense"),
    (("table", "drop", "customers", "--yes"), "", "Did you mean shop.customers?"),
    (("table", "define", "a.b.c"), "", "Invalid table name"),
    (("database", "drop", "shop", "--yes"), "", "--cascade"),
    (("database", "describe", "nope"), "", "no database nope"),
    (("partition", "list", "shop.orders"), "", "has no partitions"),
    (("partition", "create", "shop.visits", "dy=1"), "", "'day'"),
    (("append", "shop.orders", "missing.parquet"), "", "There is no file missing.parquet"),
    (("append", "shop.orders"), "", "--format"),
    (("append", "shop.orders", "--format", "json"), '{"id": 1}\n{"id": "x"}', "line 2, column 'id'"),
    (("append", "shop.orders", "--format", "csv"), "id,dya\n1,2\n", "Did you mean day?"),
    (("append", "shop.orders", "--format", "parquet"), "no", "can't be read as parquet"),
    (("append", "shop.customers", "--format", "json"), "{}", "use 'fluss upsert"),
    (("append", "shop.visits", "--format", "json"), '{"day": "never"}', "--create-partitions"),
    (("upsert", "shop.orders", "--format", "json"), "{}", "use 'fluss append"),
    (("upsert", "shop.customers", "--format", "json", "--columns", "name"), "{}", "region"),
    (("delete", "shop.customers", "--key", "id=5"), "", "a value for each of region, id"),
    (("delete", "shop.orders", "--key", "id=5"), "", "no primary key"),
    (("scan", "shop.orders", "--columns", "totl"), "", "Did you mean total?"),
    (("scan", "shop.orders", "--filter", "id >"), "", "position"),
    (("scan", "shop.visits", "--partition", "2026"), "", "has no partition 2026"),
    (("tail", "shop.orders", "--from", "yesterday", "--no-follow"), "", "'yesterday' is not a time"),
    (("changes", "shop.nothing", "--no-follow"), "", "no table shop.nothing"),
    (("lookup", "shop.customers", "region=EU", "id=99"), "", "no row with region=EU, id=99"),
    (("lookup", "shop.customers", "region=EU", "id=x"), "", "'x' is not a value of type int"),
    (("lookup", "shop.orders", "id=1"), "", "has no primary key"),
    (("sql", "SELECT * FROM visits"), "", "there is shop.visits"),
    (("offsets", "shop.orders", "--at", "then"), "", "'then' is not a time"),
]


@pytest.mark.parametrize(("arguments", "given", "text"), BAD, ids=lambda value: " ".join(value)[:40] if value else "")
def test_a_mistake_is_one_helpful_line(server: str, arguments: tuple[str, ...], given: str, text: str) -> None:
    # One of each command as a process.
    first = next(bad for bad in BAD if bad[0][0] == arguments[0])
    run = fluss if first[0] == arguments else here
    done = run(*arguments, bootstrap=server, input=given)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"fluss {arguments[0]}: ")
    assert text in line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("scan",), "Missing argument"),
        (("lookup", "t"), "id=5"),
        (("table", "create", "t"), "--schema"),
        (("tail", "t", "-n", "5", "--from", "earliest"), "not both"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], text: str) -> None:
    done = here(*arguments, bootstrap=NOBODY)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_no_server_there(tmp_path: Path) -> None:
    done = fluss("table", "list", bootstrap=NOBODY, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert NOBODY in line
    assert "fluss server" in line
    # An option comes before the environment, which comes before the file.
    (tmp_path / "fluss.toml").write_text('port = 9123\n[client]\nbootstrap.servers = "127.0.0.1:2"\n')
    assert "127.0.0.1:2 " in fluss("database", "list", cwd=tmp_path).stderr
    (tmp_path / "fluss.toml").write_text("[client]\nbootstrap-server = 1\n")
    bad = fluss("database", "list", cwd=tmp_path)
    assert "fluss.toml, [client]: Unknown configuration key" in bad.stderr


def test_a_directory_needs_no_server(tmp_path: Path) -> None:
    address = f"file:{tmp_path / 'data'}"
    assert good("database", "create", "d", server=address) == "database d created\n"
    assert "d " in good("database", "list", server=address)


def test_a_login(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert fluss("user", "add", users, "ada", input="secret\n").stdout == "user ada added\n"
    with FlussServer(tmp_path / "data", args=["--sasl-users", str(users)]) as running:
        address = running.bootstrap_servers
        refused = here("table", "list", bootstrap=address)
        assert refused.returncode == 1
        assert "--user NAME" in refused.stderr
        assert here("table", "list", "--user", "ada", "--password", "no", bootstrap=address).returncode == 1
        done = fluss("database", "list", "--user", "ada", bootstrap=address, variables={"FLUSS_PASSWORD": "secret"})
        assert done.returncode == 0
        assert "fluss " in done.stdout
