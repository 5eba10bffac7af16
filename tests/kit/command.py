"""The command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

TIMEOUT_S = 120
VARIABLES = ("FLUSS_BOOTSTRAP", "FLUSS_USER", "FLUSS_PASSWORD", "FLUSS_CONFIG")


def commands_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """A command and all below it, as people type them."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands_of(child, (*path, name))


def leaves() -> set[str]:
    """All commands that are no groups of others, as people type them."""
    from fluss.cli.main import main

    paths = list(commands_of(main))
    return {
        " ".join(path)
        for path in paths
        if not any(len(other) > len(path) and other[: len(path)] == path for other in paths)
    }


def environment(**variables: str) -> dict[str, str]:
    """Ours, without what the caller's shell may say of a server."""
    return {key: value for key, value in os.environ.items() if key not in VARIABLES} | variables


def fluss(*arguments: str | Path, bootstrap: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `fluss` and wait for it."""
    return subprocess.run(
        [sys.executable, "-m", "fluss", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(**({"FLUSS_BOOTSTRAP": bootstrap} if bootstrap else {}), **options.pop("variables", {})),
        **options,
    )


def here(*arguments: str | Path, bootstrap: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """The same in this process, which is quicker."""
    from click.testing import CliRunner

    from fluss.cli.main import main

    variables = {**dict.fromkeys(VARIABLES), "FLUSS_BOOTSTRAP": bootstrap}
    done = CliRunner().invoke(main, list(map(str, arguments)), input=input, env=variables, prog_name="fluss")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(list(arguments), done.exit_code, done.stdout, done.stderr)


# A shell lets programs in the background ignore SIGINT, and so do their children.
INTERRUPTIBLE: Final = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
)


def started(*arguments: str, bootstrap: str = "") -> subprocess.Popen[str]:
    """Start `fluss` and leave it running. It is interrupted by SIGINT even if this process ignores that."""
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, sys.executable, "-m", "fluss", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**({"FLUSS_BOOTSTRAP": bootstrap} if bootstrap else {})),
    )
