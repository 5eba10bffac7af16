"""The specification's pages as programs.

Each Markdown file in `documents` holds the Python blocks of one page, in order and unchanged but for line breaks and
indentation that the page had lost. Kinds of blocks:

    python         a block of the page
    python raises  a block of which the page says that it fails with a FlussError
    python given   what the page takes for granted, and checks of what a block did

The harness changes two things while compiling: the address is the backend's, and an endless loop runs once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

FOLDER = Path(__file__).parent / "documents"
ADDRESS = "127.0.0.1:9123"
_FENCE = re.compile(r"^```python ?([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A piece of a page."""

    page: str
    line: int
    kind: str
    source: str

    def code(self, address: str) -> CodeType:
        """The block, ready to run; its line numbers are those of the page."""
        tree = ast.parse("\n" * self.line + self.source)
        tree = ast.fix_missing_locations(_Harness(address).visit(tree))
        return compile(tree, self.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


class _Harness(ast.NodeTransformer):
    def __init__(self, address: str) -> None:
        self._address = address

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(self._address), node) if node.value == ADDRESS else node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant) and node.test.value is True:
            once = ast.Tuple([ast.Constant(None)], ast.Load())
            return ast.copy_location(ast.For(ast.Name("_", ast.Store()), once, node.body, node.orelse), node)
        return node


def pages() -> list[str]:
    """The names of the pages."""
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def blocks(page: str) -> list[Block]:
    """The blocks of a page in order."""
    path = FOLDER / f"{page}.md"
    text = path.read_text()
    return [
        Block(path.name, text.count("\n", 0, match.start()) + 1, match[1] or "python", match[2])
        for match in _FENCE.finditer(text)
    ]
