"""The everyday commands on a real Apache Fluss cluster."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from fluss.testing import ApacheFluss
from tests.kit.command import here

pytestmark = pytest.mark.compat


def test_the_commands_work_there_too(apache_fluss: ApacheFluss, tmp_path: Path) -> None:
    database = f"cli_{uuid.uuid4().hex[:8]}"

    def run(*arguments: str, input: str = "") -> str:
        done = here(*arguments, bootstrap=apache_fluss.bootstrap_servers, input=input)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def rows(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run(*arguments, "-o", "json").splitlines()]

    run("database", "create", database)
    orders, people, visits = (f"{database}.{name}" for name in ("orders", "people", "visits"))
    run("table", "create", orders, "--schema", "id bigint, money decimal(9,2), tags array<string>", "--buckets", "2")
    run("append", orders, "--format", "json", input='{"id": 1, "money": "1.50", "tags": ["a"]}\n{"id": 2}\n')
    run("table", "alter", orders, "--set", "owner=me")
    expected = [{"id": 1, "money": "1.50", "tags": ["a"]}, {"id": 2, "money": None, "tags": None}]
    assert sorted(rows("scan", orders), key=lambda row: row["id"]) == expected
    assert rows("scan", orders, "--filter", "id > 1", "--columns", "id") == [{"id": 2}]
    assert sorted(row["id"] for row in rows("tail", orders, "--no-follow")) == [1, 2]
    assert sum(row["kept"] for row in rows("offsets", orders)) == 2
    assert "2 rows" in run("scan", orders)

    run("table", "create", people, "--schema", "id int, name string, city string, primary key (id)")
    run("upsert", people, "--format", "csv", input="id,name,city\n1,Ada,London\n2,Bob,Rome\n")
    run("upsert", people, "--format", "csv", "--columns", "id,city", input="id,city\n2,Oslo\n")
    run("delete", people, "--key", "id=1")
    assert rows("lookup", people, "id=2") == [{"id": 2, "name": "Bob", "city": "Oslo"}]
    assert here("lookup", people, "id=1", bootstrap=apache_fluss.bootstrap_servers).returncode == 1
    kinds = [row["_change_type"] for row in rows("changes", people, "--from", "earliest", "--no-follow")]
    assert kinds == ["+I", "+I", "-U", "+U", "-D"]
    assert [row["id"] for row in rows("scan", people)] == [2]
    assert [row["id"] for row in rows("changes", people, "--no-follow")] == [2]

    run("table", "create", visits, "--schema", "id int, day string", "--partition-key", "day")
    run("append", visits, "--format", "json", "--create-partitions", input='{"id": 1, "day": "d1"}')
    assert [row["partition"] for row in rows("partition", "list", visits)] == ["d1"]
    assert rows("scan", visits, "--partition", "d1") == [{"id": 1, "day": "d1"}]
    run("partition", "drop", visits, "day=d1", "--yes")

    for name in (orders, people, visits):
        assert name in run("table", "describe", name)
    definition = tmp_path / "people.toml"
    definition.write_text(run("table", "define", people))
    run("table", "create", f"{database}.again", "--file", str(definition))
    assert run("table", "define", f"{database}.again") == definition.read_text()
    run("table", "drop", f"{database}.again", "--yes")
    run("database", "drop", database, "--cascade", "--yes")
