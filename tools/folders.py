"""Lists the folders of `fluss` and their modules by their docstrings: `python -m tools.folders`.

`--write docs/map.md` puts the list between the marks of that page; a test compares the two.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path("src", "fluss")
TOOL: Final = "tools/folders.py"


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line and fit for a cell of a table."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def folders(source: Path) -> Iterator[Path]:
    """All folders below the package, each before those in it."""
    yield from sorted(path.parent for path in source.rglob("__init__.py") if path.parent != source)


def modules(folder: Path) -> Iterator[Path]:
    """The modules of a folder that have a name of their own."""
    yield from sorted(path for path in folder.glob("*.py") if not path.stem.startswith("__"))


def section(source: Path, folder: Path) -> str:
    """A folder's heading, its sentence and the table of its modules."""
    lines = [f"### {folder.relative_to(source).as_posix()}", "", sentence(folder / "__init__.py")]
    if rows := [f"| `{path.stem}` | {sentence(path)} |" for path in modules(folder)]:
        lines += ["", "| module | holds |", "|---|---|", *rows]
    return "\n".join(lines)


def listing(source: Path = SOURCE) -> str:
    """All sections, in the order of the folders' paths."""
    return "\n\n".join(section(source, folder) for folder in folders(source)) + "\n"


def inserted(text: str, page: str, tool: str = TOOL) -> str:
    """A page with a tool's text between the marks that name the tool."""
    begin, end = f"<!-- begin of {tool} -->", f"<!-- end of {tool} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the page lacks the lines {begin} and {end}, between which the text goes")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def main() -> None:
    """Print the list, or write it into a page."""
    parser = argparse.ArgumentParser(prog="python -m tools.folders", description="What the folders of fluss hold.")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the list between the marks of a page")
    page: Path | None = parser.parse_args().write
    if page is None:
        print(listing(), end="")
    else:
        page.write_text(inserted(listing(), page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
