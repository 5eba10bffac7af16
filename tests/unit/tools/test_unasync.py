"""tools/unasync.py on short texts, and on the tree of this project."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import unasync

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("awaited", "blocking"),
    [
        ("async def f(x: int) -> None:\n    await g(x)\n", "def f(x: int) -> None:\n    g(x)\n"),
        ("return (await g())[0]\n", "return (g())[0]\n"),
        ("async with f() as x:\n    pass\n", "with f() as x:\n    pass\n"),
        ("y = [x async for x in f()]\n", "y = [x for x in f()]\n"),
        ("def __aiter__(self) -> AsyncIterator[int]: ...\n", "def __iter__(self) -> Iterator[int]: ...\n"),
        ("from fluss.api._aio.scan import A\n", "from fluss.api._sync.scan import A\n"),
        ("from fluss.api.awaiting import wait\n", "from fluss.api.blocking import wait\n"),
        ("if a and \\\n        await b():\n    pass\n", "if a and \\\n        b():\n    pass\n"),
        ("await_ = 'await x'  # await\n", "await_ = 'await x'  # await\n"),
    ],
)
def test_words_are_dropped_and_names_replaced(awaited: str, blocking: str) -> None:
    assert unasync.translate(awaited) == blocking


def test_examples_are_right_for_either_facade() -> None:
    awaited = '"""Say await.\n\n>>> (await f(g(1))).x\n>>> async with h() as c:\n...     print(await c.g())\n"""\n'
    blocking = '"""Say await.\n\n>>> f(g(1)).x\n>>> with h() as c:\n...     print(c.g())\n"""\n'
    assert unasync.translate(awaited) == blocking


def test_the_tree_is_up_to_date() -> None:
    assert unasync.differences(ROOT, unasync.made_files(ROOT)) == []


def test_a_twin_that_was_edited_is_found() -> None:
    files = unasync.made_files(ROOT)
    changed = {path: text + "# edited\n" for path, text in files.items()}
    assert len(unasync.differences(ROOT, changed)) == len(files)
    path, _ = files.popitem()
    assert unasync.differences(ROOT, files) == [f"{path}: nothing makes this file: remove it"]
