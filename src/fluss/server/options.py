"""The options of `fluss server`, and a reader of those that are written plainly.

click reads them all and says what is wrong with them. It takes memory that a server would keep as long as it runs, so
`python -m fluss.server` loads it only for what the reader here leaves to it: help, mistakes, other spellings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.server.config import DURABILITIES, PORT_MAX


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
