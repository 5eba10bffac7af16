"""The process of a server: its options, read without click where they are written plainly, and its run until a signal.

click reads all options and says what is wrong with them. It takes memory that a server would keep as long as it runs,
so `python -m fluss.server` reads options that are written plainly without it, and loads it only for what is left: help,
mistakes, other spellings.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fluss.doors import threads
from fluss.model.errors import FlussError
from fluss.server.config import DURABILITIES, PORT_MAX, ServerConfig, load_config
from fluss.storage.allocator import exempt_from_collection, give_back, share_arenas
from fluss.storage.directory import ADDRESS_NAME

if TYPE_CHECKING:
    from fluss.server.server import Server


class CommandOption(NamedTuple):
    name: str
    kind: type[str] | type[int] | type[Path]  # an int is a port
    help: str
    choices: tuple[str, ...] | None = None
    metavar: str | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def accepts(self, text: str) -> bool:
        """Whether a text surely is a value; what is left is for click to judge."""
        if self.kind is int:
            return text.isascii() and text.isdigit() and len(text) <= len(str(PORT_MAX)) and int(text) <= PORT_MAX
        return not text.startswith("-") and (self.choices is None or text in self.choices)


OPTIONS: Final = (
    CommandOption("data_dir", Path, "Where data lives.  [default: ./fluss-data]"),
    CommandOption("host", str, "Address to listen on.  [default: 127.0.0.1]"),
    CommandOption("port", int, "Port to listen on, 0 for a free one.  [default: 9123]"),
    CommandOption("advertise", str, "Address told to clients.  [default: the one they reached]", metavar="HOST:PORT"),
    CommandOption("durability", str, "When a write counts as safe.  [default: fsync]", choices=DURABILITIES),
    CommandOption("metrics_port", int, "Serve Prometheus metrics on this port."),
    CommandOption("metrics_host", str, "Address for metrics.  [default: 127.0.0.1]"),
    CommandOption("sasl_users", Path, "Users that may log in; see 'fluss user add'."),
    CommandOption("config", Path, "A fluss.toml with these keys and [limits]."),
)
_BY_FLAG: Final = {option.flag: option for option in OPTIONS}


def plain_values(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The value of every option, None for those not given; None when the arguments are not all `--name value`."""
    values: dict[str, Any] = {option.name: None for option in OPTIONS}
    if len(arguments) % 2:
        return None
    for flag, text in zip(arguments[::2], arguments[1::2], strict=True):
        option = _BY_FLAG.get(flag)
        if option is None or not option.accepts(text):
            return None
        values[option.name] = option.kind(text)
    return values


_log = logging.getLogger(__name__)

_EXIT_INTERRUPTED: Final = 130
# How often the log says that connections can't be accepted.
ACCEPT_REPORT_S: Final = 60.0
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def serve_if_plain(arguments: Sequence[str]) -> bool:
    """Serve with arguments that need no click to be read; whether they were such."""
    values = plain_values(arguments)
    if values is not None:
        serve(**values)
    return values is not None


def serve(config: Path | None, **flags: Any) -> None:
    """Serve until a signal asks to stop, with a config file and flags, which are None where they were not given."""
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO, stream=sys.stderr)
    try:
        run(load_config(config, flags))
    except (FlussError, OSError) as error:
        print(f"fluss server: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:  # while it starts
        sys.exit(_EXIT_INTERRUPTED)


def run(config: ServerConfig) -> None:
    """Serve until a signal asks to stop."""
    prepare_process()
    with asyncio.Runner(loop_factory=threads.new_loop) as runner:
        runner.run(_serve(config))


async def _serve(config: ServerConfig) -> None:
    from fluss.server.server import Server

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = Server(config)
    await running.start()
    exempt_from_collection()
    confirm_clock_on_signal(running)
    note = config.data_dir / ADDRESS_NAME
    with suppress(OSError):  # for who looks at the directory; nothing depends on it
        note.write_text(f"{os.getpid()} {config.advertise or running.address}\n")
    print(f"fluss server ready on {running.address}", flush=True)
    give_back()  # What loading the program has left: a server may stay idle for long.
    await stop.wait()
    note.unlink(missing_ok=True)
    await running.stop()


def confirm_clock_on_signal(server: Server) -> None:
    """Let an operator say that the clock is right."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, server.context.storage.clock.confirm)


class LoopErrors:
    """Reports what goes wrong on the loop itself.

    Without descriptors asyncio reports each connection that it could accept, a thousand a second. It pauses meanwhile
    by itself; uvloop accepts and closes them.
    """

    def __init__(self) -> None:
        self._report_at_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        is_refusal = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
        if not is_refusal or "accept" not in context["message"]:
            loop.default_exception_handler(context)
        elif loop.time() >= self._report_at_s:
            self._report_at_s = loop.time() + ACCEPT_REPORT_S
            _log.error("no connection can be accepted now: %s; raise 'ulimit -n'", error)


def prepare_process() -> None:
    """What a process needs that only serves."""
    _raise_file_limit()
    share_arenas()
    sys.meta_path[:0] = [_WithoutPandas(), _ProtobufInPythonLater()]


class _WithoutPandas:
    """Keeps pyarrow from importing pandas for the first Python value it is given: a second and 45 MB for nothing."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("A server does without pandas.", name=fullname)


class _ProtobufInPythonLater:
    """The compiled protobuf imports the one in Python, too, and never uses it: 1.2 MB for nothing.

    It is loaded when somebody asks it for something, which is at once where there is no other.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "google.protobuf.internal.python_message":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def _raise_file_limit() -> None:
    """Connections and segments are file descriptors: take as many as the system lets this process have."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            pass
