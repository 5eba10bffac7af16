"""The command `fluss doctor`."""

# Small on purpose: a command is loaded when it is used; its checks are in `cli/doctor`.

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from fluss.cli.connecting import client_settings
from fluss.cli.doctor.findings import OK, PROBLEM, WARNING, Finding
from fluss.cli.text.output import byte_bar

_MARKS: Final = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), PROBLEM: ("PROBLEM", "red")}


@click.command()
@click.argument("data_dir", required=False, type=click.Path(path_type=Path))
@click.option("-b", "--bootstrap", envvar="FLUSS_BOOTSTRAP", metavar="ADDR", help="Check a server, not a directory.")
@click.option("--user", envvar="FLUSS_USER", metavar="NAME", help="Log in as this user.  [env: FLUSS_USER]")
@click.option("--password", envvar="FLUSS_PASSWORD", metavar="TEXT", help="Asked for if empty or not given.")
@click.option("--config", envvar="FLUSS_CONFIG", metavar="FILE", help="[client] holds settings.  [./fluss.toml]")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="[default: table]")
def doctor(data_dir: Path | None, output: str, **connection: Any) -> None:
    """Check this installation, and a data directory or a connection; say what is wrong and what to do.

    Of a directory everything is read and all checksums are compared; nothing is changed, and the server may be
    running. The exit code is 1 if there is a problem; warnings are none.

    \b
    Examples:
      fluss doctor
      fluss doctor ./fluss-data
      fluss doctor --bootstrap 127.0.0.1:9123
    """
    source = click.get_current_context().get_parameter_source("bootstrap")
    if data_dir is not None and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("Name a directory or an address, not both.")
    with byte_bar("checking") as bar:
        findings = list(_findings(data_dir, connection, bar))
    for finding in findings:
        _print(finding, output)
    sys.exit(1 if any(finding.status == PROBLEM for finding in findings) else 0)


def _findings(data_dir: Path | None, connection: dict[str, Any], bar: Any) -> Iterator[Finding]:
    from fluss.cli.doctor.findings import environment_findings

    yield from environment_findings()
    if data_dir is not None:
        from fluss.cli.doctor.directory import directory_findings

        yield from directory_findings(data_dir, bar)
    elif connection["bootstrap"]:
        from fluss.cli.doctor.findings import connection_findings

        with closing(connection_findings(client_settings(**connection))) as findings:  # type: ignore[type-var]
            yield from findings


def _print(finding: Finding, output: str) -> None:
    if output == "json":
        import json

        click.echo(json.dumps(finding._asdict()))
        return
    mark, colour = _MARKS[finding.status]
    line = f"{click.style(f'{mark:<8}', fg=colour)} {finding.check}: {finding.text}"
    click.echo(f"{line}\n{'':<9}-> {finding.advice}" if finding.advice else line)
