"""The one place where what goes wrong in a command becomes a line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import click

from fluss.model.errors import FlussError

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE_CLOSED: Final = 141
# Libraries whose errors speak of what they were given, not of a mistake in a command.
_LIBRARIES: Final = frozenset({"pyarrow", "duckdb", "_duckdb", "pyiceberg", "tomllib", "json", "sqlite3"})
_LINE_CHARACTERS_MAX: Final = 2_000


@contextmanager
def failing_as(command: Callable[[], str]) -> Iterator[None]:
    """Print what a command raises as `fluss scan: what is wrong and what to do`; other errors are bugs and go on."""
    try:
        yield
    except KeyboardInterrupt:
        # It may have come between making a coroutine and running it: Python would say that nobody awaited that.
        warnings.simplefilter("ignore", RuntimeWarning)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # What is still buffered has nobody to go to either, at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PIPE_CLOSED)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if not isinstance(error, (FlussError, OSError)) and type(error).__module__.split(".")[0] not in _LIBRARIES:
            raise
        fail(command(), " ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())]))


def fail(command: str, text: str) -> NoReturn:
    """End with one line."""
    line = " ".join(text.split())[:_LINE_CHARACTERS_MAX]
    click.echo(f"{command}: {line}", err=True)
    sys.exit(EXIT_FAILED)
