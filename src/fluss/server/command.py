"""The command `fluss server`, also `python -m fluss.server`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final

import click

from fluss.model.errors import FlussError
from fluss.server.config import DURABILITIES, ServerConfig, load_config
from fluss.storage.memory import share_arenas

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where data lives.  [default: ./fluss-data]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on, 0 for a free one.  [default: 9123]")
@click.option("--advertise", metavar="HOST:PORT", help="Address told to clients.  [default: the one they reached]")
@click.option("--durability", type=click.Choice(DURABILITIES), help="When a write counts as safe.  [default: fsync]")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Serve Prometheus metrics on this port.")
@click.option("--metrics-host", help="Address for metrics.  [default: 127.0.0.1]")
@click.option("--sasl-users", type=click.Path(path_type=Path), help="Users that may log in; see 'fluss user add'.")
@click.option("--config", type=click.Path(path_type=Path), help="A fluss.toml with these keys and [limits].")
def server(
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    advertise: str | None,
    durability: str | None,
    metrics_port: int | None,
    metrics_host: str | None,
    sasl_users: Path | None,
    config: Path | None,
) -> None:
    """Serve tables from a directory until SIGTERM or Ctrl-C.

    With --durability fsync a write is acknowledged when it is on disk; with os when the operating system has it, so
    that a power loss can take the last seconds.

    Example: fluss server --data-dir /var/lib/fluss --port 9123
    """
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO, stream=sys.stderr)
    flags = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "advertise": advertise,
        "durability": durability,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "sasl_users": sasl_users,
    }
    try:
        run(load_config(config, flags))
    except (FlussError, OSError) as error:
        click.echo(f"fluss server: {error}", err=True)
        sys.exit(1)


def run(config: ServerConfig) -> None:
    """Serve until a signal asks to stop."""
    prepare_process()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(config))


async def _serve(config: ServerConfig) -> None:
    from fluss.server.server import Server

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = Server(config)
    await running.start()
    click.echo(f"fluss server ready on {running.address}")
    sys.stdout.flush()
    await stop.wait()
    await running.stop()


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: type[asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def prepare_process() -> None:
    """What a process needs that only serves."""
    _raise_file_limit()
    share_arenas()
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    """For the first Python value it is given pyarrow imports pandas, if it is there: a second and 45 MB for nothing."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("A server does without pandas.", name=fullname)


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
