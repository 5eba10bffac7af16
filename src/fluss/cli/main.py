"""The command `fluss`. Commands are imported when they are used, so that `fluss --help` is quick."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click


class LazyCommand(NamedTuple):
    module: str
    name: str
    help: str


COMMANDS: Final = {
    "server": LazyCommand("fluss.server.command", "server", "Serve tables from a directory."),
    "user": LazyCommand("fluss.cli.user", "user", "Keep the file of users that may log in to a server."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(importlib.import_module(lazy.module), lazy.name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup)
@click.version_option(package_name="flussbett", prog_name="fluss")
def main() -> None:
    """Real-time tables for Python."""
