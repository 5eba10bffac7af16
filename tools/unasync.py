"""Makes the blocking classes of `fluss.sync` out of the awaited ones: `python -m tools.unasync`.

Every module of `src/fluss/api/_aio` is written by hand and has a twin in `_sync`, which nobody edits. The twin is the
same text without `await` and `async`, with the names below in the place of others. Whatever else differs between the
two is in `api/awaiting.py` and `api/blocking.py`, which have the same names. `--check` writes nothing and fails when a
twin is not up to date; `make check` does that.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

API: Final = Path("src", "fluss", "api")
SOURCE, TARGET = API / "_aio", API / "_sync"
HEADER: Final = "# Made of {source} by tools/unasync.py: change that file, and run `make sync`.\n"

# Keywords that go, with the space behind them.
DROPPED: Final = frozenset({"async", "await"})
NAMES: Final = {
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "_aio": "_sync",
    "awaiting": "blocking",
}
# Lines of examples in docstrings, which have to be right for either facade, and what goes in them.
_EXAMPLE: Final = re.compile(r"^ *(?:>>>|\.\.\.) .*$", re.MULTILINE)
_AWAITING: Final = re.compile(r"\bawait |\basync (?=def|for|with)")
# Brackets that only stand because of an `await`: `(await f(x)).y`
_BRACKETS: Final = re.compile(r"(?<![\w)\]])\(await ((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)(?=[.\[])")
# What is left to be put in order: imports by name, names that were needed for awaiting only, generators.
_FIXES: Final = "I,F401,UP028"


def translate(text: str) -> str:
    """The text of a module without `await` and `async`, not formatted yet."""
    lines = text.splitlines(keepends=True)
    made, row, column = [], 1, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        made += _between(lines, (row, column), token.start)
        made.append(_translated(token))
        row, column = token.end
        if token.string in DROPPED:
            column += 1  # the space that follows
    return "".join(made)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> Iterator[str]:
    """What stands between two tokens: spaces, and lines that a backslash joins."""
    (row, column), (end_row, end_column) = start, end
    while row < end_row:
        yield lines[row - 1][column:]
        row, column = row + 1, 0
    if column < end_column:
        yield lines[row - 1][column:end_column]


def _translated(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return "" if token.string in DROPPED else NAMES.get(token.string, token.string)
    if token.type == tokenize.STRING and token.string.startswith('"""'):
        return _EXAMPLE.sub(lambda line: _AWAITING.sub("", _BRACKETS.sub(r"\1", line[0])), token.string)
    return token.string


def _modules(folder: Path) -> list[Path]:
    """The modules of a folder; each of the two says in its own `__init__.py` what it is."""
    return [path for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]


def made_files(root: Path) -> dict[Path, str]:
    """What the folder of twins has to hold."""
    return {
        TARGET / path.name: _formatted(root, TARGET / path.name, HEADER.format(source=f"_aio/{path.name}") + body)
        for path in _modules(root / SOURCE)
        for body in [translate(path.read_text(encoding="utf-8"))]
    }


def _formatted(root: Path, path: Path, text: str) -> str:
    for arguments in (["check", "--quiet", "--fix-only", "--unsafe-fixes", "--select", _FIXES], ["format", "--quiet"]):
        command = [Path(sys.executable).with_name("ruff"), *arguments, "--stdin-filename", path, "-"]
        text = subprocess.run(command, cwd=root, input=text, capture_output=True, text=True, check=True).stdout
    return text


def differences(root: Path, files: dict[Path, str]) -> list[str]:
    """A line for each twin that is not what it should be."""
    there = {path.relative_to(root) for path in _modules(root / TARGET)}
    lines = [f"{path}: nothing makes this file: remove it" for path in sorted(there - set(files))]
    for path, text in files.items():
        if path not in there or (root / path).read_text(encoding="utf-8") != text:
            lines.append(f"{path}: not what tools/unasync.py makes of {SOURCE / path.name}: run `make sync`")
    return lines


def main() -> int:
    """Write the twins, or with --check print which are not up to date; 0 when all is well."""
    parser = argparse.ArgumentParser(prog="python -m tools.unasync", description="Make api/_sync of api/_aio.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if something is not up to date")
    root = Path(__file__).parents[1]
    files = made_files(root)
    if parser.parse_args().check:
        lines = differences(root, files)
        print(*lines, sep="\n", end="\n" if lines else "")
        return 1 if lines else 0
    for path in set(_modules(root / TARGET)) - {root / path for path in files}:
        path.unlink()
    for path, text in files.items():
        (root / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
