"""The command `fluss user`: the users file of a server with SASL."""

# Small on purpose: a command is loaded when it is used, and this one needs no server.

from __future__ import annotations

import sys
from pathlib import Path

import click

_FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def user() -> None:
    """Keep the file of users that may log in to a server (fluss server --sasl-users FILE).

    A running server notices changes by itself.

    Example: fluss user add users.txt ada
    """


@user.command()
@_FILE
@click.argument("name")
def add(file: Path, name: str) -> None:
    """Add a user, or change a password. It is asked for, or read from standard input.

    Example: fluss user add users.txt ada
    """
    from fluss.server.net.users import add_user

    is_new = add_user(file, name, _password())
    click.echo(f"user {name} added" if is_new else f"password of user {name} changed")


@user.command()
@_FILE
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Remove a user. Connections that are logged in stay.

    Example: fluss user remove users.txt ada
    """
    from fluss.server.net.users import remove_user

    remove_user(file, name)
    click.echo(f"user {name} removed")


@user.command(name="list")
@_FILE
def list_users(file: Path) -> None:
    """Print the names of all users.

    Example: fluss user list users.txt
    """
    from fluss.server.net.users import read_users

    for name in sorted(read_users(file)):
        click.echo(name)


def _password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return password
    return sys.stdin.readline().rstrip("\r\n")
