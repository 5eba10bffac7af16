"""The table of features is true to what happened, and the known differences are all asserted somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.differences import (
    APACHE,
    CLIENTS,
    EMBEDDED,
    JAVA,
    OUR_CLIENT,
    OUR_SERVER,
    PYFLUSS,
    SERVERS,
    Difference,
    load,
)
from tests.compat.report import COLUMNS, Outcomes

_TESTS = Path(__file__).parents[1]


def cells(markdown: str, feature: str) -> dict[tuple[str, str], str]:
    line = next(line for line in markdown.splitlines() if line.startswith(f"| {feature} |"))
    return dict(zip(COLUMNS, [cell.strip() for cell in line.split("|")[2:-1]], strict=True))


def test_a_cell_says_yes_only_if_all_its_tests_passed() -> None:
    outcomes = Outcomes()
    outcomes.add("Scans", [OUR_CLIENT, PYFLUSS], OUR_SERVER, passed=True)
    outcomes.add("Scans", [PYFLUSS], OUR_SERVER, passed=False)
    outcomes.add("Scans", [PYFLUSS], OUR_SERVER, passed=True)
    outcomes.add("Scans", [JAVA], APACHE, passed=True)
    found = cells(outcomes.markdown([]), "Scans")
    assert found[OUR_CLIENT, OUR_SERVER] == "yes"
    assert found[PYFLUSS, OUR_SERVER] == "no"
    assert found[JAVA, APACHE] == "yes"
    assert found[OUR_CLIENT, EMBEDDED] == found[JAVA, OUR_SERVER] == ""


def test_a_cell_does_not_say_yes_to_what_is_known_to_be_missing() -> None:
    outcomes = Outcomes()
    outcomes.add("Scans", [OUR_CLIENT, PYFLUSS], OUR_SERVER, passed=True)
    outcomes.add("Scans", [PYFLUSS], APACHE, passed=False)
    found = cells(outcomes.markdown([Difference("Scans", "exact", {OUR_CLIENT: True, PYFLUSS: False}, "why")]), "Scans")
    assert found[OUR_CLIENT, OUR_SERVER] == "yes"
    assert found[PYFLUSS, OUR_SERVER] == "differs"
    assert found[PYFLUSS, APACHE] == "no"


@pytest.mark.parametrize("name", load())
def test_every_known_difference_is_explained_and_asserted(name: str) -> None:
    difference = load()[name]
    assert difference.reason
    assert difference.values.keys() <= {*CLIENTS, *SERVERS}
    sources = [*(_TESTS / "compat").glob("test_*.py"), *(_TESTS / "peers" / "scenarios").glob("*.py")]
    assert any(f'["{name}"]' in source.read_text() for source in sources)
    assert difference.what in Outcomes().markdown([difference])
