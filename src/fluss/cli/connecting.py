"""How commands find their server: options, then the environment, then fluss.toml, then 127.0.0.1:9123."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fluss.model.config import Config, resolved
from fluss.model.errors import AuthenticationError, FlussError, InvalidRequestError

if TYPE_CHECKING:
    from fluss.sync import FlussConnection

CONFIG_NAME: Final = "fluss.toml"
CLIENT_TABLE: Final = "client"
TERMINAL: Final = "/dev/tty"
# A person waits for the answer; a program that reads fluss.toml may set more.
CONNECT_TIMEOUT_MS: Final = 5_000

# Set where a command is the whole program: what is left out stays out for the process.
without_pandas = False

Function = TypeVar("Function", bound=Callable[..., Any])


def connection_options(command: Function) -> Function:
    """Add the options of a connection, such as --bootstrap; the command gets `settings`, a Config, in their place."""

    @click.option(
        "-b",
        "--bootstrap",
        envvar="FLUSS_BOOTSTRAP",
        metavar="ADDR",
        help="host:port or file:DIRECTORY.  [FLUSS_BOOTSTRAP]",
    )
    @click.option("--user", envvar="FLUSS_USER", metavar="NAME", help="Log in as this user.  [FLUSS_USER]")
    @click.option(
        "--password", envvar="FLUSS_PASSWORD", metavar="TEXT", help="Asked for if it is missing.  [FLUSS_PASSWORD]"
    )
    @click.option(
        "--config",
        envvar="FLUSS_CONFIG",
        metavar="FILE",
        help="Its [client] has settings.  [FLUSS_CONFIG, ./fluss.toml]",
    )
    @click.option(
        "--lake-trusted",
        envvar="FLUSS_LAKE_TRUSTED",
        metavar="PLACES",
        help="Hosts, paths, buckets that servers may name.  [FLUSS_LAKE_TRUSTED]",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        bootstrap: str | None,
        user: str | None,
        password: str | None,
        config: str | None,
        lake_trusted: str | None,
        **kwargs: Any,
    ) -> Any:
        settings = client_settings(bootstrap, user, password, config)
        if lake_trusted:
            settings.lake_trusted = lake_trusted
        return command(*args, settings=settings, **kwargs)

    return wrapped  # type: ignore[return-value]


def client_settings(bootstrap: str | None, user: str | None, password: str | None, config: str | None) -> Config:
    """The settings of a connection. A user who is named logs in; a password that is missing is asked for."""
    settings = Config({"connect-timeout": CONNECT_TIMEOUT_MS, **_file_settings(config)})
    if bootstrap:
        settings.bootstrap_servers = bootstrap
    if user:
        settings.security_protocol = "sasl"
        settings.security_sasl_username = user
        settings.security_sasl_password = password or _asked_password(user)
    elif password:
        settings.security_sasl_password = password
    return settings


def _asked_password(user: str) -> str:
    """What is typed at the terminal, which need not be standard input."""
    try:
        open(TERMINAL).close()
    except OSError:
        raise FlussError(
            f"There is no terminal to ask for the password of {user!r} at: set FLUSS_PASSWORD, or pass --password."
        ) from None
    password: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return password


@contextmanager
def connected(settings: Config) -> Iterator[FlussConnection]:
    """A connection of `fluss.sync`, closed at the end."""
    if without_pandas:
        _leave_pandas_out()
    from fluss.sync import FlussConnection

    try:
        connection = FlussConnection.create(settings)
    except AuthenticationError as error:
        advice = "A command logs in with --user NAME, and with FLUSS_PASSWORD or --password."
        raise AuthenticationError(f"{error.message} {advice}", error.error_code) from error
    with connection:
        yield connection


class _NoPandas:
    """Finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _leave_pandas_out() -> None:
    """PyArrow looks for pandas once, at its first array; to load it takes longer than most commands, none needs it."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(_NoPandas)


def _file_settings(config: str | None) -> dict[str, Any]:
    path = Path(config or CONFIG_NAME)
    if not config and not path.is_file():
        return {}
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FlussError(f"Config file {path} can't be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FlussError(f"Config file {path} is not TOML: {error}.") from error
    table = content.get(CLIENT_TABLE, {})
    if not isinstance(table, dict):
        raise FlussError(f"Config file {path}: {CLIENT_TABLE} must be a table, [{CLIENT_TABLE}].")
    try:
        values = {key: resolved(key, value) for key, value in _flat(table)}
        Config(values)
    except InvalidRequestError as error:
        raise FlussError(f"Config file {path}, [{CLIENT_TABLE}]: {error.message}") from error
    return values


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots, whether they were written `a.b = 1`, `"a.b" = 1` or as tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
