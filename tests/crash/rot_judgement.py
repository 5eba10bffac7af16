"""Which errors are right after a damage: they come from the damaged bucket, and name the file and the position."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from tests.crash.rot_damage import DELETE, DISPOSABLE, SEGMENTS, STAGED_ROWS, Damage
from tests.crash.rot_reader import ClientRefusalError
from tests.kit.directory_image import DirectoryImage

# A bucket, or a directory that has more: the staged rows of a table, its lake snapshots, all its buckets.
Scope: TypeAlias = TableBucket | str

_POSITION: Final = re.compile(r"\b(?:byte|position) \d+")
_CATALOG: Final = "catalog.db"
_TABLES: Final = "tables/"


class Judgement:
    """What was wrong after a damage, or after none, and which errors were right."""

    def __init__(self, image: DirectoryImage, damage: Damage | None) -> None:
        self._damage = damage
        self._links = [] if damage is None else image.links(damage.path)
        # The damage came after the storage had looked: then it may be left to clients to look again.
        self.was_verified = False
        self.problems: list[str] = []
        self.errors: list[str] = []

    def expect_no_error(self) -> None:
        """The damage was repaired."""
        self._damage = None

    def problem(self, where: object, text: str) -> None:
        self.problems.append(f"{where}: {text}")

    def judge_start(self, error: Exception) -> None:
        """A start may fail if a file is damaged that all buckets need."""
        if self._damage is not None and self._damage.path.startswith(_TABLES):
            self.problem("start", f"one bucket keeps all others from being served: {error!r}")
        else:
            self.judge(error, "start", None)

    def judge(self, error: Exception, where: object, scope: Scope | None) -> None:
        """Whether an error is as it should be."""
        shown = f"{type(error).__name__}: {error}"
        if not isinstance(error, FlussError):
            self.problem(where, f"not an error for clients: {shown}")
        elif self._damage is None or self._damage.kind in DISPOSABLE:
            self.problem(where, f"nothing is lost, and yet: {shown}")
        elif not is_within(self._damage.path, scope):
            self.problem(where, f"another file is damaged: {shown}")
        elif not (isinstance(error, ClientRefusalError) and self.was_verified) and not self._is_named(
            error.message, self._damage
        ):
            self.problem(where, f"does not name the file and the position: {shown}")
        else:
            self.errors.append(f"{where}: {error.message}")

    def _is_named(self, message: str, damage: Damage) -> bool:
        path = PurePosixPath(damage.path)
        if path.name.startswith(_CATALOG):
            return _CATALOG in message
        if "kv" in path.parts or "snapshots" in path.parts:
            # RocksDB does not always tell which of its files is bad. One may be in a store and in its snapshots.
            return any(str(PurePosixPath(name).parent) in message for name in self._links)
        if damage.how == DELETE and damage.kind in SEGMENTS:
            return path.name in message or str(path.parent) in message
        if damage.how == DELETE and damage.kind == STAGED_ROWS:
            # As if it had expired: the commit says which request of which task is not there.
            return path.name in message or "requests are staged" in message
        return path.name in message and (damage.kind not in SEGMENTS or bool(_POSITION.search(message)))


def is_within(path: str, scope: Scope | None) -> bool:
    """Whether a file is one of a bucket or directory, or of all."""
    if not path.startswith(_TABLES) or scope is None:
        return True
    return path.startswith((scope if isinstance(scope, str) else _path_of(scope)) + "/")


def _path_of(bucket: TableBucket) -> str:
    partition = "" if bucket.partition_id is None else f"/p{bucket.partition_id}"
    return f"{_TABLES}{bucket.table_id}{partition}/{bucket.bucket_id}"
