"""docs/compatibility.md from the outcome of a run: `pytest --compat-table docs/compatibility.md`.

A test says which feature it proves with `@pytest.mark.feature("Partitions")`. Client and server are its parameters
`peer` and `backend`, or what it records: `record_property("clients", [...])`, `record_property("server", ...)`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.compat.differences import APACHE, CLIENTS, OUR_CLIENT, OUR_SERVER, SERVERS, Difference, load, server_name

PROVED, FAILED, DIFFERS = "yes", "no", "differs"

# No column for what cannot be: embedded is a directory that only this client knows how to open.
COLUMNS = [(OUR_CLIENT, server) for server in SERVERS] + [
    (client, server) for client in CLIENTS if client != OUR_CLIENT for server in (OUR_SERVER, APACHE)
]

_HEAD = """\
# Compatibility

Which features work with which client on which server: this project's client, pyfluss 1.0.0 and the Java client 0.9.1;
this project's server, the same embedded (`file:` addresses), and Apache Fluss 0.9.1. A cell says yes when all tests of
the feature passed there, differs when they passed but a part of the feature is known to be missing (see below), and is
empty where no test ran. `make compat-table` writes this page from a run of all tests.
"""


class Outcomes:
    """What became of the tests of each feature, by client and server."""

    def __init__(self) -> None:
        self._cells: defaultdict[str, dict[tuple[str, str], str]] = defaultdict(dict)

    def add(self, feature: str, clients: Iterable[str], server: str, *, passed: bool) -> None:
        cells = self._cells[feature]
        for client in clients:
            before = cells.get((client, server), PROVED)
            cells[client, server] = before if passed else FAILED

    def markdown(self, differences: Iterable[Difference]) -> str:
        differences = list(differences)
        lines = [_HEAD, _row("feature", *(f"{client} on {server}" for client, server in COLUMNS))]
        lines.append("|---" * (1 + len(COLUMNS)) + "|")
        for feature, cells in sorted(self._cells.items()):
            lacking = {column for column in COLUMNS if _lacks(feature, column, differences)}
            found = {
                column: DIFFERS if cell == PROVED and column in lacking else cell for column, cell in cells.items()
            }
            lines.append(_row(feature, *(found.get(column, "") for column in COLUMNS)))
        lines += ["", "## Known differences", "", "Each is asserted by a test.", ""]
        lines += [_row("feature", "what", "where", "reason"), "|---" * 4 + "|"]
        for difference in sorted(differences, key=lambda known: (known.feature, known.what)):
            where = "; ".join(f"{place}: {_spelled(value)}" for place, value in difference.values.items())
            lines.append(_row(difference.feature, difference.what, where, difference.reason))
        return "\n".join(lines) + "\n"


def _lacks(feature: str, column: tuple[str, str], differences: list[Difference]) -> bool:
    """Whether a known difference says no to a part of the feature for this client on this server."""
    places = [(known, known.place(*column)) for known in differences if known.feature == feature]
    return any(place is not None and known.values[place] is False for known, place in places)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _spelled(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"`{value}`"


class Plugin:
    """Collects outcomes; writes the table only when nothing failed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._outcomes = Outcomes()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
            for mark in item.iter_markers("feature"):
                item.user_properties.append(("feature", mark.args[0]))
                item.user_properties.append(("clients", [parameters.get("peer", OUR_CLIENT)]))
                if "backend" in parameters:
                    item.user_properties.append(("server", server_name(str(parameters["backend"]))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or (report.when != "call" and not report.failed):
            return
        # What a test records comes after what its parameters say.
        said = dict(report.user_properties)
        if "feature" in said and "server" in said:
            clients: Any = said["clients"]
            self._outcomes.add(str(said["feature"]), clients, str(said["server"]), passed=report.passed)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._path is None or hasattr(session.config, "workerinput"):
            return  # With several workers all outcomes come to the process that started them.
        if exitstatus != pytest.ExitCode.OK:
            session.config.get_terminal_writer().line(f"{self._path} is left as it was: the run failed")
        else:
            self._path.write_text(self._outcomes.markdown(load().values()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compat-table", type=Path, help="write the table of features, clients and servers to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "feature(name): the row of docs/compatibility.md that this test proves")
    config.pluginmanager.register(Plugin(config.getoption("--compat-table")))
