"""What a server notes of the clock for its next start: the file `server.clock` of a data directory.

The file is disposable: without it, the next start trusts the clock after an hour, as a first one does.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final
from zlib import crc32

from fluss.model.clock import Clock, ClockNote
from fluss.storage import files
from fluss.storage.directory import CLOCK_NAME
from fluss.storage.failpoints import Site

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_SIZE_BYTES_MAX: Final = 4_096


def open_clock(root: Path, settle_ms: int) -> Clock:
    """The clock of a server on this directory."""
    return Clock(settle_ms, boot=files.boot_id().decode("ascii", "replace"), note=read_note(root))


def read_note(root: Path) -> ClockNote | None:
    """What the last run has noted; None where there is nothing that can be used."""
    try:
        with (root / CLOCK_NAME).open("rb") as file:
            content = json.loads(file.read(_SIZE_BYTES_MAX))
        fields = content["note"]
        if (content["version"], content["crc32"]) != (_VERSION, _crc(fields)):
            return None
        boot, ahead_ms, since_ms, is_settled, time_ms = fields
        return ClockNote(str(boot), int(ahead_ms), int(since_ms), bool(is_settled), int(time_ms))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write_note(root: Path, note: ClockNote) -> None:
    """Put a note in place; without it the next start waits longer."""
    data = json.dumps({"version": _VERSION, "crc32": _crc(list(note)), "note": note}).encode()
    try:
        files.replace(root / CLOCK_NAME, data, Site.CLOCK_NOTE, durable=False)
    except OSError as error:
        _log.warning("%s could not be written: %s", root / CLOCK_NAME, error)


def _crc(fields: list[object]) -> int:
    return crc32(json.dumps(fields).encode())
