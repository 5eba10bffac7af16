"""The pytest fixtures, found by pytest as after an installation, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin as its entry point says, whether or not the one of this environment is up to date."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["pytest11"]
    assert set(points) == {"fluss"}
    information = pytester.mkdir("site") / "fluss_fixtures-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fluss-fixtures\nVersion: 1.0\n")
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (information / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    monkeypatch.setenv("PYTHONPATH", f"{information.parent}:{SOURCE}")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q", *args, timeout=120)


def test_one_line_is_enough(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pyarrow as pa
        import fluss

        names = []

        def write_and_read(connection, database):
            schema = fluss.Schema(pa.schema([("id", pa.int64())]))
            path = fluss.TablePath(database, "orders")
            connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
            table = connection.get_table(path)
            writer = table.new_append().create_writer()
            writer.write_arrow(pa.table({"id": [1, 2, 3]}))
            writer.flush()
            assert connection.get_admin().get_table_stats(path).row_count == 3

        def test_first(fluss_connection, fluss_database):
            write_and_read(fluss_connection, fluss_database)
            names.append(fluss_database)

        def test_second(fluss_connection, fluss_database, fluss_server):
            # Of the same name, in a database of its own; the other one is gone.
            write_and_read(fluss_connection, fluss_database)
            databases = fluss_connection.get_admin().list_databases()
            assert fluss_database in databases
            assert names[0] not in databases
            fluss_server.kill()

        def test_third_after_a_kill(fluss_connection, fluss_database):
            write_and_read(fluss_connection, fluss_database)
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_the_proxy_is_in_the_way(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pyarrow as pa
        import fluss
        from fluss.protocol import api_keys

        def test_lost_answers(fluss_proxy, fluss_connection, fluss_database):
            schema = fluss.Schema(pa.schema([("id", pa.int64())]))
            path = fluss.TablePath(fluss_database, "orders")
            fluss_connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
            fluss_proxy.drop_responses([api_keys.PRODUCE_LOG.key], limit=2)
            writer = fluss_connection.get_table(path).new_append().create_writer()
            writer.write_arrow(pa.table({"id": [1, 2, 3]}))
            writer.flush()
            assert fluss_proxy.counters.dropped_by_api[api_keys.PRODUCE_LOG.key] == 2
            assert fluss_connection.get_admin().get_table_stats(path).row_count == 3
            fluss_proxy.freeze()

        def test_a_frozen_proxy_is_no_trouble_for_the_next(fluss_connection, fluss_proxy, fluss_database):
            assert fluss_database in fluss_connection.get_admin().list_databases()
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_a_proxy_that_comes_too_late(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(fluss_server, request):
            request.getfixturevalue("fluss_proxy")
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*fluss_proxy must be an argument of a test or fixture*"])


def test_other_runs_load_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert "pytest_fluss" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] in ("fluss", "pyarrow", "numpy", "google")]
        """
    )
    run(pytester, "-p", "no:asyncio").assert_outcomes(passed=1)


def test_the_fixtures_are_listed(pytester: pytest.Pytester) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "-q", str(pytester.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    for name in ("fluss_server", "fluss_database", "fluss_connection", "fluss_proxy"):
        assert name in done.stdout
