"""What is said where an extra is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fluss.sync as fs
from fluss.cli.doctor.findings import environment_findings
from fluss.model.forms.type_text import parse_schema

_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError("missing", name=name.split(".")[0])

sys.meta_path.insert(0, Missing())
"""


def without(names: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    program = _WITHOUT.format(names=names) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the tiered table t."""
    found = f"file:{tmp_path_factory.mktemp('data')}"
    descriptor = fs.TableDescriptor(parse_schema("id int"), properties={"table.datalake.enabled": "true"})
    with fs.connect(found) as connection:
        connection.get_admin().create_table("t", descriptor)
    return found


@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        (["lake", "compact", "--table", "t"], "pyiceberg", "lake"),
        (["lake", "status"], "pyiceberg", "lake"),
        (["tier", "--local"], "pyiceberg", "lake"),
        (["tier"], "pyspark", "spark"),
        (["sql", "SELECT 1"], "duckdb", "lake"),
    ],
)
def test_commands_say_what_to_install(
    arguments: list[str], missing: str, extra: str, address: str, tmp_path: Path
) -> None:
    lake = [] if arguments[0] == "sql" else ["--warehouse", str(tmp_path)]
    code = f"from fluss.cli.main import main; main({[*arguments, *lake, '-b', address]!r}, prog_name='fluss')"
    done = without((missing, "sqlalchemy"), code)
    assert f"{missing} is not installed; install flussbett[{extra}]" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_fluss_spark_says_what_to_install() -> None:
    done = without(("pyspark",), "import fluss.spark")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: pyspark is not installed; install flussbett[spark]."


def test_doctor_lists_extras() -> None:
    (found,) = (finding for finding in environment_findings() if finding.check == "extras")
    for extra in ("lake", "spark", "pandas", "polars", "bitmaps"):
        assert extra in found.text
