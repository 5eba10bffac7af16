"""The command `fluss server`, also `python -m fluss.server`."""

# Small on purpose: it needs click, and a server does without.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fluss.server.config import PORT_MAX
from fluss.server.process import OPTIONS, CommandOption, serve


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(OPTIONS):
        command = click.option(option.flag, type=_kind(option), help=option.help, metavar=option.metavar)(command)
    return command


def _kind(option: CommandOption) -> click.ParamType[Any] | type[str]:
    if option.choices is not None:
        return click.Choice(option.choices)
    if option.kind is int:
        return click.IntRange(0, PORT_MAX)
    return str if option.kind is str else click.Path(path_type=option.kind)


@click.command()
@_with_options
def server(**values: Any) -> None:
    """Serve tables from a directory until SIGTERM or Ctrl-C.

    With --durability fsync a write is acknowledged when it is on disk; with os when the operating system has it, so
    that a power loss can take the last seconds.

    Example: fluss server --data-dir /var/lib/fluss --port 9123
    """
    serve(**values)
