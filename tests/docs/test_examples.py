"""Every example of the documentation runs and prints what its page says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from fluss.cli.main import main
from fluss.server import metrics_page
from fluss.server.config import ServerConfig, effective_settings
from tests.kit.pages import DOCS, EXEMPT, ROOT, Block, Page, assert_shown, blocks_of, check_settings

# Pages with Spark are run where the tests have a session: tests/spark.
SPARK = {"spark.md", "lake.md", "tutorial.md", "howto/declarative-pipelines.md"}
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


def test_commands_of_the_lake_page(tmp_path: Path) -> None:
    """Its Python goes through Spark and runs in tests/spark; these do without."""
    blocks = blocks_of(DOCS / "lake.md")
    lines = "".join(block.text for block in blocks if not block.language).replace("\\\n", "").splitlines()
    # The job of `fluss tier` is a Spark job unless told otherwise.
    commands = [line.partition("  #")[0].replace("fluss tier", "fluss tier --local") for line in lines]
    # A service does not end, and tests/compat has what needs Iceberg's jars.
    runnable = [line for line in commands if "--interval" not in line and "--merge-on-read" not in line]
    assert {line.split()[1] for line in runnable} == {"tier", "sql", "lake"}
    rows = """
with conn.get_table(events).new_append().create_writer() as writer:
    writer.append([1, "a", 2.5])
"""
    tables = Block("python", "", blocks[0].text + rows, blocks[0].line)
    console = Block("console", "", "".join(f"$ {command}\n" for command in runnable), 1)
    Page(DOCS / "lake.md", tmp_path).run([tables, console])


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


def test_the_server_page_names_every_setting_and_metric() -> None:
    text = (DOCS / "server.md").read_text(encoding="utf-8")
    metrics = re.findall(r'"(fluss_\w+)"', Path(metrics_page.__file__).read_text(encoding="utf-8"))
    settings = [key for key, _ in effective_settings(ServerConfig()) if not key.startswith("limits.")]
    assert len(metrics) > 15
    assert len(settings) > 10
    assert not (missing := [name for name in (*metrics, *settings) if name not in text]), missing


def test_the_command_line_page_names_every_command() -> None:
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    commands = main.list_commands(click.Context(main))
    assert "tail" in commands
    assert not (missing := [name for name in commands if f"`{name}`" not in text]), missing


def test_the_pictures_are_there() -> None:
    for path in [*PAGES, ROOT / "README.md"]:
        for target in re.findall(r"!\[[^\]]*\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).is_file(), f"{path.name}: {target}"
