"""What a file or a directory can hold after a power loss: any part of what was not synced, torn, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple, TypeVar

SURVIVES_SHARE: Final = 0.5
_SECTOR_BYTES: Final = 512

N = TypeVar("N")


class Write(NamedTuple):
    """A write, or without data a cut, that no sync covers yet."""

    number: int
    position: int
    data: bytes | None


def surviving_names(durable: Mapping[str, N], there: Mapping[str, N], chance: Random) -> dict[str, N]:
    """The names a directory can have whose last sync saw `durable`; a file that was renamed has one of its names."""
    found = {
        name: node
        for name, node in sorted(there.items(), key=_name)
        if durable.get(name) == node or chance.random() < SURVIVES_SHARE
    }
    arrived = set(found.values())
    for name, node in sorted(durable.items(), key=_name):
        if name in found or node in arrived:
            continue
        is_removed = name not in there and node not in there.values()
        if not is_removed or chance.random() < SURVIVES_SHARE:
            found[name] = node
    return found


def _name(item: tuple[str, object]) -> str:
    return item[0]


def surviving_content(durable: bytes | bytearray, writes: Sequence[Write], chance: Random) -> bytes:
    """One of the things a file can hold: what was durable, with the first few writes, or with any, whole or torn."""
    content = bytearray(durable)
    if chance.random() < SURVIVES_SHARE:
        for write in writes[: chance.randint(0, len(writes))]:
            apply(content, write.position, write.data)
        return bytes(content)
    is_in_order = chance.random() < SURVIVES_SHARE
    kept = writes[: chance.randint(1, len(writes))] if is_in_order else writes
    for write in kept[:-1]:
        if is_in_order:
            apply(content, write.position, write.data)
        elif chance.random() < SURVIVES_SHARE:
            apply(content, *_torn(write, chance))
    apply(content, *_torn(kept[-1], chance))
    if chance.random() < SURVIVES_SHARE:
        _lose_sectors(content, durable, kept[-1], chance)
    return bytes(content)


def _torn(write: Write, chance: Random) -> tuple[int, bytes | None]:
    """The beginning or the end of a write, or all of it."""
    position, data = write.position, write.data
    if data is None:
        return position, None
    cut = chance.randint(0, len(data))
    return chance.choice([(position, data), (position, data[:cut]), (position + cut, data[cut:])])


def apply(content: bytearray, position: int, data: bytes | None) -> None:
    """Do a write, or without data a cut."""
    if data is None:
        content[position:] = bytes(max(0, position - len(content)))
    elif data:
        # A file that grew before its bytes came has zeros there.
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data


def _lose_sectors(content: bytearray, durable: bytes | bytearray, write: Write, chance: Random) -> None:
    """Sectors of a write that did not come: what was there before, or zeros."""
    if write.data is None:
        return
    end = min(write.position + len(write.data), len(content))
    for start in range(write.position, end, _SECTOR_BYTES):
        stop = min(start + _SECTOR_BYTES, end)
        if chance.random() < SURVIVES_SHARE:
            content[start:stop] = durable[start:stop].ljust(stop - start, b"\0")
