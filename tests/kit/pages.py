"""Pages of the documentation, run as a reader would: their blocks in order, in one folder, with a server."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.server.config import load_config
from fluss.testing import FlussServer

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
ADDRESS: Final = "127.0.0.1:9123"  # of the pages; on this machine it may belong to somebody else
COMMAND_S_MAX: Final = 120
VARIABLES: Final = ("FLUSS_BOOTSTRAP", "FLUSS_USER", "FLUSS_PASSWORD", "FLUSS_CONFIG")

# Wherever the package comes from, its command is that of this interpreter.
_SHELL: Final = f'fluss() {{ "{sys.executable}" -m fluss "$@"; }}; '

# Languages of blocks that are not run, and why.
EXEMPT: Final = {
    "bash": "needs the network (pip install), or runs until it is stopped",
    "text": "is no program: a list of files, a pattern",
}

_BLOCK: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE: Final = re.compile(r'title="([^"]+)"')
# What differs from run to run: durations, sizes, times.
_VARYING: Final = (
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s)\b"), "<duration>"),
    (re.compile(r"\b\d+(\.\d+)? ?(bytes|B|kB|KiB|MB|MiB|GB|GiB)\b"), "<size>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "<time>"),
)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str  # the file it is, if any
    text: str
    line: int


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text, result = path.read_text(encoding="utf-8"), []
    for match in _BLOCK.finditer(text):
        language, _, rest = match[1].strip().partition(" ")
        title = _TITLE.search(rest)
        line = text.count("\n", 0, match.start()) + 2
        result.append(Block(language, title[1] if title else "", match[2], line))
    return result


class Page:
    """A page that is being run in `folder`. `names` are the variables of its Python."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._address = ""
        self._printed = ""
        self._closing = contextlib.ExitStack()
        self.replaced: dict[str, str] = {}  # texts of the page that can't be as they are here
        self.command_s_max = COMMAND_S_MAX
        self._before: dict[str, Callable[[], None]] = {}

    def before_block(self, text: str, prepare: Callable[[], None]) -> None:
        """Have something done before the first block that has this text."""
        self._before[text] = prepare

    def run(self, blocks: Iterable[Block] | None = None) -> None:
        """Run all blocks, or these; raises for the first one that does not do what the page says."""
        with self._closing, contextlib.chdir(self.folder):
            self._closing.callback(self._close_connections)
            for block in blocks_of(self.path) if blocks is None else blocks:
                try:
                    for text in [text for text in self._before if text in block.text]:
                        self._before.pop(text)()
                    self._run(block)
                except BaseException as error:
                    error.add_note(f"in the block at {self.path.name}:{block.line}")
                    raise

    def _run(self, block: Block) -> None:
        if block.title:
            self._write(block)
        elif block.language == "python":
            self._python(block)
        elif block.language == "output":
            assert normal(self._printed) == normal(block.text)
        elif block.language == "console":
            for command, expected in _commands(block.text):
                self._console(command, expected)
        elif block.language == "toml":
            check_settings(block.text, self.folder)
        elif block.language:
            assert block.language in EXEMPT, f"a block of the language {block.language!r} is neither run nor exempt"

    def _write(self, block: Block) -> None:
        if block.title == "fluss.toml":
            check_settings(block.text, self.folder)
        file = self.folder / block.title
        file.parent.mkdir(exist_ok=True)
        file.write_text(self._addressed(block.text), encoding="utf-8")

    def _python(self, block: Block) -> None:
        # Line numbers of a traceback are those of the page.
        source = "\n" * (block.line - 1) + self._addressed(block.text)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(self.path), "exec"), self.names)
        self._printed = printed.getvalue()

    def _console(self, command: str, expected: str) -> None:
        if command.startswith("fluss server"):
            self._start_server(command)
            return
        done = subprocess.run(
            ["sh", "-c", _SHELL + self._addressed(command)],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self.command_s_max,
        )
        printed = done.stdout.replace(str(self.folder), "").replace(self._address or ADDRESS, ADDRESS)
        is_mistake = expected.startswith("fluss ")  # then what a page shows is the line that says so
        assert (done.returncode != 0) is is_mistake, f"$ {command}\n{printed}"
        if expected:
            assert_shown(printed, expected)

    def _start_server(self, command: str) -> None:
        """The server that a page starts: as it says, but on a free port."""
        if " --port" in command:
            raise AssertionError("a page's server is on the default port")
        arguments = command.split()[2:]
        directory = arguments[arguments.index("--data-dir") + 1]
        server = FlussServer(self.folder / directory, args=arguments, log_file=self.folder / "server.log")
        self._address = self._closing.enter_context(server).bootstrap_servers

    def _addressed(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text.replace(ADDRESS, self.address) if ADDRESS in text else text

    @property
    def address(self) -> str:
        """Of the page's server, which is started when it is needed and the page did not do so."""
        if not self._address:
            self._start_server("fluss server --data-dir other-data --durability os")
        return self._address

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
        # A page with a fluss.toml has the address in there.
        found = {} if (self.folder / "fluss.toml").exists() else {"FLUSS_BOOTSTRAP": self.address}
        return kept | {"PATH": path, "COLUMNS": "120", "PYTHONWARNINGS": "ignore"} | found

    def _close_connections(self) -> None:
        for value in list(self.names.values()):
            if type(value).__name__ == "FlussConnection":
                value.close()


def check_settings(text: str, folder: Path) -> None:
    """Let the server's loader read a fluss.toml."""
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    load_config(file, {})


def assert_shown(printed: str, shown: str) -> None:
    """A page's output is what was printed, except where a line … stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line) + "\n" for line in normal(shown).splitlines()
    )
    assert re.fullmatch(pattern, normal(printed) + "\n"), f"shown:\n{shown}\nprinted:\n{printed}"


def normal(text: str) -> str:
    """Without what differs from run to run, and without spaces at line ends or more than one between words."""
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    lines = [re.sub(r"[ \t]+", " ", re.sub(r"─{2,}|-{2,}|━{2,}", "--", line)).rstrip() for line in text.splitlines()]
    return "\n".join(lines).strip("\n")


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands and what they print; a command may go on with a backslash."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(index for index, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(lines[: end + 1]), "\n".join(lines[end + 1 :])
