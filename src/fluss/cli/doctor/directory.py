"""What `fluss doctor` finds in a data directory. Nothing is changed there, and a server may be running on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss.cli.doctor.doctor_scrub import scrub_findings
from fluss.cli.doctor.findings import Finding, ok, problem, warning
from fluss.cli.text.progress import ByteBar, size_text
from fluss.model.errors import FlussError

if TYPE_CHECKING:
    from fluss.storage.damage.survey import Damage

_REPAIR: Final = "See 'fluss repair DIRECTORY', and restore a backup if it has more."
_FREE_BYTES_MIN: Final = 1 << 30


def directory_findings(root: Path, bar: ByteBar) -> Iterator[Finding]:
    """All of them, in the order in which they are found."""
    from fluss.storage.catalog.read import is_served
    from fluss.storage.damage.survey import LogDamage, survey
    from fluss.storage.directory import HELD_NAME, read_version

    try:
        version = read_version(root)
    except (FlussError, OSError) as error:
        yield problem("format", str(error), "Name the directory that was given to 'fluss server --data-dir'.")
        return
    if version is None:
        yield problem("format", f"{root} is empty or no data directory", "Name one that a server has used.")
        return
    yield ok("format", f"version {version}")
    served = is_served(root)
    yield ok("server", "running; its last writes are looked at as they go" if served else "not running")
    yield _free_space(root)
    yield from scrub_findings(root)
    if (root / HELD_NAME).exists() and not served:
        yield warning("backup", "a backup was interrupted; its links take room", "The next start removes them.")
    found = survey(root, lambda size_bytes: bar.begin("checking", size_bytes), bar.add, served=served)
    if found.content is not None and not any(damage.subject == "catalog" for damage in found.damages):
        yield ok("catalog", f"{len(found.content.databases)} databases, {len(found.content.tables)} tables")
    yield from map(_finding, found.damages)
    yield from (warning(*note) for note in found.notes)
    if found.content is not None:
        damaged = {damage.subject for damage in found.damages if isinstance(damage, LogDamage)}
        good = f"{found.bucket_count - len(damaged)} of {found.bucket_count} buckets"
        yield ok("logs", f"{good}, {found.batch_count} batches, {size_text(found.size_bytes)} read")


def _free_space(root: Path) -> Finding:
    from fluss.storage.disk_guard import disk_free_bytes

    free_bytes = disk_free_bytes(root)
    if free_bytes >= _FREE_BYTES_MIN:
        return ok("free space", size_text(free_bytes))
    return warning(
        "free space",
        f"{size_text(free_bytes)}; a server refuses writes below {size_text(_FREE_BYTES_MIN)}",
        "Free some space, or let tables keep less (table.log.ttl).",
    )


def _finding(damage: Damage) -> Finding:
    text = damage.text if str(damage.path) in damage.text else f"{damage.path}: {damage.text}"
    if damage.is_mended:
        return warning(damage.subject, text, f"The server mends that by itself; or: {_REPAIR}")
    if not damage.repair:
        return problem(damage.subject, text, damage.advice)
    return problem(damage.subject, text, f"A repair would lose: {damage.loss or 'nothing'}. {_REPAIR}")
