"""Every example of the documentation runs and prints what its page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, EXEMPT, ROOT, Page, assert_shown, blocks_of, check_settings

# Pages with Spark are run where the tests have a session: tests/spark.
SPARK = {"spark.md", "lake.md", "tutorial.md"}
# Their one block is a list of files.
WITHOUT_PROGRAMS = {"design.md"}
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if blocks_of(path) and path.relative_to(DOCS).as_posix() not in SPARK | WITHOUT_PROGRAMS
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_page(path: Path, tmp_path: Path) -> None:
    Page(path, tmp_path).run()


@pytest.mark.parametrize("name", sorted(SPARK))
def test_settings_of_pages_with_spark(name: str, tmp_path: Path) -> None:
    for block in blocks_of(DOCS / name):
        if block.language == "toml":
            check_settings(block.text, tmp_path)


def test_fences_are_closed_and_languages_known() -> None:
    known = {"python", "console", "toml", "output", *EXEMPT}
    for path in PAGES:
        assert {block.language for block in blocks_of(path)} <= known, path
        fences = re.findall(r"^\s*```.*$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(blocks_of(path)), path


def test_a_wrong_page_is_noticed(tmp_path: Path) -> None:
    for number, text in enumerate(
        (
            "```python\n1 / 0\n```\n",
            "```python\nprint(1)\n```\n```output\n2\n```\n",
            "```console\n$ echo one\ntwo\n```\n",
            "```console\n$ exit 3\n```\n",
            "```toml\nprot = 9123\n```\n",
            "```perl\n1\n```\n",
        )
    ):
        path, folder = tmp_path / f"{number}.md", tmp_path / str(number)
        path.write_text(text, encoding="utf-8")
        folder.mkdir()
        with pytest.raises(Exception, match=r".") as caught:
            Page(path, folder).run()
        assert f"{number}.md:" in caught.value.__notes__[-1]


def test_omitted_lines() -> None:
    assert_shown("a\nb\nc\n", "a\n…\nc")
    with pytest.raises(AssertionError):
        assert_shown("a\nb\nc\n", "a\n…\nd")


def test_the_pictures_are_there() -> None:
    for path in [*PAGES, ROOT / "README.md"]:
        for target in re.findall(r"!\[[^\]]*\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).is_file(), f"{path.name}: {target}"
