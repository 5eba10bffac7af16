"""Every program of the specification runs on every kind of address."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
from typing import Any

import pytest

import fluss
from tests.kit.backends import Backend
from tests.spec.documents import Block, blocks, pages

DEADLINE_S = 60.0


class Reader:
    """Somebody who types a page's blocks into one session."""

    def __init__(self, backend: Backend) -> None:
        self._address = backend.bootstrap_servers
        self._loop = asyncio.new_event_loop()
        self._output = io.StringIO()

        async def ready(path: fluss.TablePath, partition: str | None = None) -> None:
            backend.await_table(path.database_name, path.table_name, partition)

        self._names: dict[str, Any] = {"ready": ready, "printed": self._output.getvalue}

    def run(self, block: Block) -> None:
        expected = pytest.raises(fluss.FlussError) if block.kind == "raises" else contextlib.nullcontext()
        with contextlib.redirect_stdout(self._output), expected:
            result = eval(block.code(self._address), self._names)
            if inspect.iscoroutine(result):
                self._loop.run_until_complete(asyncio.wait_for(result, DEADLINE_S))

    def close(self) -> None:
        if "conn" in self._names:
            self._names["conn"].close()
        self._loop.close()


@pytest.mark.parametrize("page", pages())
def test_page(page: str, backend: Backend) -> None:
    reader = Reader(backend)
    try:
        for block in blocks(page):
            reader.run(block)
    finally:
        reader.close()


def test_pages_have_blocks() -> None:
    kinds = {page: [block.kind for block in blocks(page) if block.kind != "given"] for page in pages()}
    assert {page: len(found) for page, found in kinds.items()} == {
        "admin_operations": 6,
        "guide": 21,
        "log_tables": 7,
        "python_reference": 2,
    }
