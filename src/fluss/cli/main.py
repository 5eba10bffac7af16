"""The command `fluss` and the table of its commands, where a new one is entered. Each is imported when it is used."""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

import click

from fluss.cli.failures import failing_as


class LazyCommand(NamedTuple):
    module: str
    name: str
    help: str
    section: str = "Server"


COMMANDS: Final = {
    "database": LazyCommand(
        "fluss.cli.commands.database", "database", "List, create, describe and drop databases.", "Tables"
    ),
    "table": LazyCommand(
        "fluss.cli.commands.table", "table", "List, create, describe, alter and drop tables.", "Tables"
    ),
    "partition": LazyCommand("fluss.cli.commands.offsets", "partition", "List, create and drop partitions.", "Tables"),
    "offsets": LazyCommand("fluss.cli.commands.offsets", "offsets", "Print how far a table's buckets reach.", "Tables"),
    "append": LazyCommand("fluss.cli.commands.write", "append", "Append rows from files or standard input.", "Rows"),
    "upsert": LazyCommand("fluss.cli.commands.write", "upsert", "Insert or update rows by primary key.", "Rows"),
    "delete": LazyCommand("fluss.cli.commands.write", "delete", "Delete rows by primary key.", "Rows"),
    "scan": LazyCommand("fluss.cli.commands.scan", "scan", "Print the rows of a table as they are now.", "Rows"),
    "tail": LazyCommand("fluss.cli.commands.scan", "tail", "Follow the rows of a table as they come.", "Rows"),
    "changes": LazyCommand(
        "fluss.cli.commands.scan", "changes", "Follow a table's changes, with type and offset.", "Rows"
    ),
    "lookup": LazyCommand("fluss.cli.commands.lookup", "lookup", "Look rows up by primary key.", "Rows"),
    "sql": LazyCommand("fluss.cli.commands.sql", "sql", "Query tables with SQL, fresh rows included.", "Rows"),
    "tier": LazyCommand("fluss.cli.commands.lake", "tier", "Tier tables to the lake, once or as a service.", "Lake"),
    "lake": LazyCommand(
        "fluss.cli.commands.lake", "lake", "See, compact, clean up and drop tables in the lake.", "Lake"
    ),
    "staged": LazyCommand("fluss.cli.commands.staged", "staged", "List and settle batches of exactly-once streams."),
    "backup": LazyCommand(
        "fluss.cli.commands.directory", "backup", "Copy all data of a running server to a directory."
    ),
    "restore": LazyCommand("fluss.cli.commands.directory", "restore", "Make a data directory of a backup."),
    "doctor": LazyCommand("fluss.cli.commands.doctor", "doctor", "Check a data directory or a connection."),
    "repair": LazyCommand("fluss.cli.commands.directory", "repair", "Repair a data directory, and say what is lost."),
    "bench": LazyCommand("fluss.cli.commands.bench", "bench", "Time workloads against a server."),
    "dump-log": LazyCommand("fluss.cli.commands.directory", "dump_log", "Print what a server's log files hold."),
    "server": LazyCommand("fluss.server.command", "server", "Serve tables from a directory."),
    "user": LazyCommand("fluss.cli.commands.user", "user", "Keep the file of users that may log in to a server."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(importlib.import_module(lazy.module), lazy.name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from fluss.cli.text.coerce import near_names, suggestion

            ctx.fail(f"There is no command {args[0]!r}.{suggestion(near_names(args[0], COMMANDS))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(lazy.section for lazy in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items() if lazy.section == section])

    def invoke(self, ctx: click.Context) -> Any:
        with failing_as(lambda: f"fluss {ctx.invoked_subcommand}"):
            return super().invoke(ctx)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flussbett", prog_name="fluss")
def main() -> None:
    """Real-time tables for Python.

    Commands find a server at --bootstrap, FLUSS_BOOTSTRAP, [client] of fluss.toml, or 127.0.0.1:9123.
    `fluss server` starts one; `--bootstrap file:DIRECTORY` needs none.

    \b
    Examples:
      fluss table create orders --from orders.csv
      fluss append orders orders.csv
      fluss sql "SELECT count(*) FROM orders"
    """
