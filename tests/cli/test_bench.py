"""`fluss bench`: every workload on a small server, and what it leaves behind, which is nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

import fluss.sync as fs
from fluss.bench import workloads
from fluss.bench.bench import WORKLOADS
from fluss.testing import ApacheFluss
from tests.kit.command import fluss, here, started

SMALL: Final = ("--rows", "500", "--batch-rows", "200", "--seconds", "0")
WAIT_S_MAX: Final = 60


@pytest.fixture
def databases(server: str) -> Iterator[None]:
    """The databases are the same afterwards."""
    with fs.connect(server) as connection:
        before = connection.get_admin().list_databases()
        yield
        assert connection.get_admin().list_databases() == before


def _results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("buckets", [1, 3])
def test_every_workload(server: str, databases: None, buckets: int) -> None:
    done = fluss("bench", *SMALL, "--buckets", str(buckets), "-o", "json", bootstrap=server)
    assert (done.returncode, done.stderr) == (0, "")
    _check(_results(done), "Flussbett server", buckets)


def _check(results: list[dict[str, Any]], server: str, buckets: int) -> None:
    assert [result["workload"] for result in results if result["part"] != "update"] == list(WORKLOADS)
    for result in results:
        assert (result["status"], result["reason"]) == ("ok", None), result
        assert (result["server"], result["buckets"], result["table_rows"]) == (server, buckets, 500)
        assert result["kernels"] in ("compiled", "plain Python")
        assert result["seconds"] > 0
        assert result["cpu_seconds"] >= 0
        single = result["workload"] in ("lookup", "lookup-many", "prefix-lookup", "ack", "visible")
        assert bool(result["median_ms"]) == single
        assert result["p99_ms"] is None
        assert bool(result["rows_per_second"]) == (result["workload"] != "visible")
        rows = {"changes": 1_500, "lookup-many": 1_000, "prefix-lookup": 10}.get(
            result["workload"], 1 if single else 500
        )
        assert (result["runs"], result["rows"]) == (1, rows)
    assert [result["part"] for result in results if result["part"]] == ["insert", "update"]


def test_for_people(server: str, databases: None) -> None:
    done = fluss("bench", *SMALL, "scan", "upsert", "scan", bootstrap=server)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"server  Flussbett server at {server}"
    assert "kernels" in lines[1]
    assert lines[2] == "tables  500 rows, in batches of 200; 1 bucket"
    assert [line[:14].strip() for line in lines[6:9]] == ["scan", "upsert insert", "upsert update"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nonsense",), 2, "'nonsense' is not one of"),
        (("--rows", "0"), 2, "--rows"),
        (("--bootstrap", "127.0.0.1:1", "append"), 1, "fluss bench: "),
        (("--bootstrap", "not an address"), 1, "fluss bench: "),
    ],
)
def test_mistakes(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = fluss("bench", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert code == 2 or done.stderr.count("\n") == 1


def test_wrong_rows_are_a_failure(server: str, databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row too many is written: the workload has failed, and others go on."""
    original = workloads.append_all

    def with_one_more(table: fs.FlussTable, batches: list[Any]) -> None:
        original(table, [*batches, batches[0].slice(0, 1)])

    monkeypatch.setattr(workloads, "append_all", with_one_more)
    done = here("bench", *SMALL, "append", "upsert-rows", "-o", "json", bootstrap=server)
    assert done.returncode == 1
    failed, good = _results(done)
    assert (failed["status"], failed["reason"]) == ("failed", "501 rows came, 500 were expected.")
    assert failed["rows_per_second"] is None
    assert good["status"] == "ok"
    done = here("bench", *SMALL, "append", bootstrap=server)
    assert done.returncode == 1
    assert "FAILED: 501 rows came" in done.stdout


def test_what_a_server_refuses_is_a_failure_too(server: str, databases: None) -> None:
    done = here("bench", *SMALL, "--buckets", "1000000000", "ack", "-o", "json", bootstrap=server)
    assert done.returncode == 1
    (result,) = _results(done)
    assert result["status"] == "failed"
    assert result["reason"]


def test_what_a_server_lacks_is_said(server: str, databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(_: object) -> None:
        raise fs.FlussError("It has no\nsuch request.", fs.ErrorCode.UNSUPPORTED_VERSION)

    monkeypatch.setattr(workloads, "append", lacking)
    done = here("bench", *SMALL, "append", "ack", bootstrap=server)
    assert done.returncode == 0
    assert "not possible here: It has no such request." in done.stdout
    (result,) = _results(here("bench", *SMALL, "append", "-o", "json", bootstrap=server))
    assert (result["status"], result["runs"]) == ("unsupported", None)


def test_interrupted(server: str, databases: None) -> None:
    process = started("bench", "--seconds", "600", "--rows", "500", "visible", bootstrap=server)
    try:
        with fs.connect(server) as connection:
            _wait_for_tables(connection.get_admin(), process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S_MAX)
        assert (process.returncode, errors) == (130, "")
    finally:
        process.kill()
        process.wait()


def _wait_for_tables(admin: fs.FlussAdmin, process: subprocess.Popen[str]) -> None:
    ends_s = time.monotonic() + WAIT_S_MAX
    while not any(admin.list_tables(name) for name in admin.list_databases() if name.startswith("bench_")):
        assert process.poll() is None
        assert time.monotonic() < ends_s
        time.sleep(0.02)


@pytest.mark.compat
def test_on_apache_fluss(apache_fluss: ApacheFluss) -> None:
    with fs.connect(apache_fluss.bootstrap_servers) as connection:
        before = connection.get_admin().list_databases()
        done = here("bench", *SMALL, "-o", "json", bootstrap=apache_fluss.bootstrap_servers)
        assert done.returncode == 0
        _check(_results(done), "Apache Fluss cluster", 1)
        assert connection.get_admin().list_databases() == before
