"""Settings of a running server: those it was started with, and on top those that were changed since, which are kept.

A change is on disk before it counts. One that a later version does not take any more is passed over with a warning: a
setting is no reason not to start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.server.config import CHANGEABLE, ServerConfig, effective_settings, with_settings
from fluss.storage.catalog.catalog import Catalog

_log = logging.getLogger(__name__)

SET, DELETE = 0, 1
# Apache Fluss's names for where a setting comes from.
_AT_START: Final = "INITIAL_SERVER_CONFIG"
_CHANGED: Final = "DYNAMIC_SERVER_CONFIG"
_TAG_PREFIX: Final = "server.tag."  # kept beside the settings; not one itself


class SettingChange(NamedTuple):
    """A change that is asked for."""

    key: str
    operation: int
    value: str | None


class Settings:
    """Used on the loop."""

    def __init__(self, at_start: ServerConfig, catalog: Catalog) -> None:
        self._at_start = at_start
        self._catalog = catalog
        self.on_change: list[Callable[[ServerConfig], None]] = []
        self.config = self._kept()

    def _kept(self) -> ServerConfig:
        config = self._at_start
        for key, value in self._changed().items():
            try:
                config = with_settings(config, {key: value})
            except InvalidRequestError as error:
                _log.warning("the setting %s, which was changed at run time, is passed over: %s", key, error)
        return config

    def _changed(self) -> dict[str, str]:
        return {key: value for key, value in self._catalog.settings().items() if key in CHANGEABLE}

    def effective(self) -> Iterator[tuple[str, str, str]]:
        """Key, value and source of each, for everyone to see."""
        changed = self._changed()
        for key, value in effective_settings(self.config):
            yield key, value, _CHANGED if key in changed else _AT_START

    async def change(self, changes: Sequence[SettingChange]) -> None:
        """Change settings, all or none of them."""
        wanted = {change.key: _new_value(change) for change in changes}
        kept = {key: value for key, value in {**self._changed(), **wanted}.items() if value is not None}
        config = with_settings(self._at_start, kept)
        await self._catalog.change_settings(wanted)
        self.config = config
        for tell in self.on_change:
            tell(config)
        _log.info("settings were changed: %s", ", ".join(f"{key}={value}" for key, value in wanted.items()))

    # --- tags of servers

    def tags(self) -> Mapping[int, int]:
        """The tag of each server that has one, by server id."""
        found = self._catalog.settings().items()
        return {int(key.removeprefix(_TAG_PREFIX)): int(tag) for key, tag in found if key.startswith(_TAG_PREFIX)}

    async def set_tags(self, tags: Mapping[int, int | None]) -> None:
        """Give servers a tag, or take it from them."""
        changes = {f"{_TAG_PREFIX}{server}": None if tag is None else str(tag) for server, tag in tags.items()}
        await self._catalog.change_settings(changes)


def _new_value(change: SettingChange) -> str | None:
    key = change.key[:100]
    if change.key not in CHANGEABLE:
        raise FlussError(
            f"{key!r} can't be changed while the server runs; those that can are {', '.join(CHANGEABLE)}. Others are "
            "set in fluss.toml.",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    if change.operation == DELETE:
        return None
    # protobuf leaves bytes where a text is not UTF-8.
    if change.operation != SET or not isinstance(change.value, str):
        raise FlussError(f"{key} can be set to a value, or deleted, nothing else.", ErrorCode.INVALID_CONFIG_EXCEPTION)
    return change.value
