"""Findings in a data directory, its scrubber's included; nothing is changed, and a server may be running on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss.cli.doctor.findings import Finding, ok, problem, warning
from fluss.cli.text.output import ByteBar, size_text
from fluss.model.errors import FlussError

if TYPE_CHECKING:
    from fluss.storage.damage.scrub_files import ScrubFinding, ScrubReport
    from fluss.storage.damage.survey import Damage

_NAMED_MAX: Final = 20
_CHECK: Final = "scrub"


def scrub_findings(root: Path) -> Iterator[Finding]:
    """The last scrub of a directory; nothing where there was none yet."""
    from fluss.storage.damage.scrub_files import read_report

    report = read_report(root)
    if report is None:
        return
    yield ok(_CHECK, _summary(report))
    for finding in report.findings[:_NAMED_MAX]:
        yield _scrub_finding(root, finding)
    if len(report.findings) > _NAMED_MAX:
        text = f"{len(report.findings) - _NAMED_MAX} more files were found damaged"
        yield problem(_CHECK, text, "The log of the server has all of them.")


def _summary(report: ScrubReport) -> str:
    texts = []
    if report.last_ended_ms:
        size, ended = size_text(report.last_size_bytes), _time(report.last_ended_ms)
        texts.append(f"last one ended {ended}, {size} read in {report.last_seconds:.0f} s")
    if report.done is not None:
        texts.append(f"one that began {_time(report.started_ms)} is under way, {size_text(report.size_bytes)} read")
    return "; ".join(texts) or "none has ended yet"


def _scrub_finding(root: Path, finding: ScrubFinding) -> Finding:
    text = f"{finding.file}: {finding.reason} (found {_time(finding.found_ms)})"
    if finding.is_mended:
        return warning(_CHECK, f"{text}; it was replaced", "Have a look at the disk: it loses what it was given.")
    if _changed_since(root / finding.file, finding):
        return warning(_CHECK, f"{text}; it was changed or removed since", "The server looks again after its start.")
    return problem(_CHECK, text, f"{finding.advice}.")


def _changed_since(path: Path, finding: ScrubFinding) -> bool:
    try:
        return path.stat().st_mtime_ns // 1_000_000 > finding.found_ms
    except FileNotFoundError:
        return "missing" not in finding.reason


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000).astimezone().isoformat(sep=" ", timespec="seconds")


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
    from fluss.storage.directory import disk_free_bytes

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
