"""The facades' docstrings say what goes in and what comes out, and their examples run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest

import fluss.sync
from tests.docs.docstrings import Described, Shop, described

DESCRIBED = described()
_SECTION = re.compile(r"^(Args|Returns|Raises|Examples):\n((?:    .*\n|\n)*)", re.MULTILINE)


@pytest.fixture(scope="module")
def server() -> Iterator[fluss.sync.FlussConnection]:
    """A connection to an embedded server, which all examples use."""
    with fluss.sync.connect("memory:") as connection:
        yield connection


def _sections(item: Described) -> dict[str, str]:
    return {match[1]: match[2] for match in _SECTION.finditer(item.text + "\n")}


@pytest.mark.parametrize("item", DESCRIBED, ids=str)
def test_docstrings_are_complete(item: Described) -> None:
    sections = _sections(item)
    assert ">>>" in sections.get("Examples", ""), f"{item} has no example"
    if inspect.isclass(item.item) or isinstance(item.item, property):
        return
    signature = inspect.signature(item.item)
    parameters = [
        ("**" if parameter.kind is parameter.VAR_KEYWORD else "") + name
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    assert re.findall(r"^    ([\w*]+):", sections.get("Args", ""), re.MULTILINE) == parameters
    assert ("Returns" in sections) == (signature.return_annotation != "None"), f"{item}: Returns"
    for line in re.findall(r"^    (\S.*)", sections.get("Raises", ""), re.MULTILINE):
        error, _, when = line.partition(": ")
        assert hasattr(fluss, error), f"{item}: there is no {error}"
        assert when


def test_there_are_docstrings() -> None:
    """Of every facade, as many as there are methods; a wrong filter would leave them out."""
    assert len(DESCRIBED) > 300


@pytest.mark.parametrize("item", DESCRIBED, ids=str)
def test_examples(item: Described, server: fluss.sync.FlussConnection) -> None:
    Shop(item.facade, server).run(item.owner, item.text)
