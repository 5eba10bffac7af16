"""A first day at the shell: every command with good input, on one server that a command started.

The long form runs each command as a process of its own, the short one runs them here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import split
from subprocess import CompletedProcess
from typing import Final

import pytest

from tests.kit.command import fluss, here, leaves, started

# A command, and a piece of what it prints. In the order of the day: each step needs those before it.
STEPS: Final = [
    ("database create shop", "database shop created"),
    ("database list", "shop"),
    ("database describe shop", "shop"),
    ("table create shop.orders --from orders.csv --property table.datalake.enabled=true", "table shop.orders created"),
    ("append shop.orders orders.csv", "3 rows appended"),
    ("table list shop", "orders"),
    ("table alter shop.orders --add-column 'note string'", "shop.orders"),
    ("table describe shop.orders", "note"),
    ("table define shop.orders", "note"),
    ("scan shop.orders -o csv", "oar"),
    ("tail shop.orders --from earliest --limit 1 -o json", '"id": 1'),
    ("offsets shop.orders", "3"),
    ("tier --local --table shop.orders", "shop.orders"),
    ("sql 'SELECT count(*) AS orders FROM shop.orders'", "3"),
    ("lake status", "1 table, 0 rows behind"),
    ("lake compact --table shop.orders", "shop.orders"),
    ("lake expire --table shop.orders", "shop.orders"),
    ("lake clean --table shop.orders --dry-run", "shop.orders"),
    ("lake drop shop.orders --start-over --purge --yes", "files removed"),
    ("table create shop.customers --schema 'id int, name string, primary key (id)'", "table shop.customers created"),
    ("upsert shop.customers customers.csv", "2 rows"),
    ("delete shop.customers --key id=2", "1"),
    ("lookup shop.customers id=1", "Ada"),
    ("changes shop.customers --from earliest --no-follow", "-D"),
    ("table create shop.days --schema 'day string' --partition-key day", "table shop.days created"),
    ("partition create shop.days day=1", "day"),
    ("partition list shop.days", "1"),
    ("partition drop shop.days day=1 --yes", "day"),
    ("table drop shop.days --yes", "table shop.days dropped"),
    ("database create empty", "created"),
    ("database drop empty --yes", "database empty dropped"),
    ("bench ack --rows 100 --seconds 0.2", "ack"),
    ("staged list", "no queries"),
    ("staged reset shop.orders query --to 3 --yes", "batches after 3"),
    ("staged accept shop.orders query 3 --yes", "batches up to 3"),
    ("doctor", "all with leaders"),
    ("dump-log data/tables/0/0", "3"),
    ("backup COPY", "2 tables"),
    ("restore COPY restored", "restored"),
    ("repair restored", "no damage was found"),
    ("user add users.txt ada", "ada"),
    ("user list users.txt", "ada"),
    ("user remove users.txt ada", "ada"),
]


def test_every_command_is_used() -> None:
    used = {command for command in leaves() for text, _ in STEPS if f"{text} ".startswith(f"{command} ")}
    assert used | {"server"} == leaves()


@pytest.mark.parametrize("run", [here, pytest.param(fluss, marks=pytest.mark.full)])
def test_a_first_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., CompletedProcess[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text("id,product\n1,rope\n2,oar\n3,oar\n")
    (tmp_path / "customers.csv").write_text("id,name\n1,Ada\n2,Bob\n")
    with started("server", "--data-dir", str(tmp_path / "data"), "--port", "0") as server:
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            address = ready.split()[-1]
            for text, piece in STEPS:
                arguments = split(text.replace("COPY", str(tmp_path / "copy")))
                done = run(*arguments, bootstrap=address, input="secret\n")
                printed = done.stdout + done.stderr
                assert done.returncode == 0, f"{text}: {printed}"
                assert piece in printed, f"{text}: {printed}"
            server.terminate()
            assert server.wait(60) == 0
        finally:
            server.kill()
