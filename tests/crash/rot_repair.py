"""Repairs, by seed: one damage to one file, what the survey says of it beside what the server says, and the repair.

A survey changes nothing. It finds what the server finds, and no more that is lost. After a repair nothing is damaged:
all that was acknowledged is there, at its offset, but for what the repair said it would lose; lost offsets are empty
batches; what is written then gets offsets, numbers and ids that were never used.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Final

from fluss.formats.batches.log_batch import parse_header
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage.damage.repair import Repair, in_order
from fluss.storage.damage.survey import CatalogDamage, LogDamage, Survey, survey
from fluss.storage.directory import DataDirectory, read_version
from fluss.storage.store import Storage
from tests.crash.kv_stored import rows_of
from tests.crash.rot import KILLED, STOPPED, RotRun, Verdict
from tests.crash.rot_damage import Damage, draw
from tests.crash.rot_directory import (
    KEYS,
    LOG,
    NUMBERS,
    Acknowledged,
    LogContent,
    RotTemplate,
    create_table,
    descriptors,
    log_batch,
    now_ms,
    number_keys,
    numbers_of,
    options,
)
from tests.crash.rot_reader import RotReader
from tests.kit.directory_image import DirectoryImage
from tests.kit.rows import Row

_COMMIT_TIME: Final = slice(13, 21)  # of a batch; the checksum leaves it out
_NEW_ID: Final = 9_000


class RepairRun(RotRun):
    """Damage, look, repair."""

    def verdict(self, seed: int) -> Verdict:
        chance = random.Random(seed)
        template = self.template(chance.randrange(self._template_count))
        ending = chance.choice([KILLED, STOPPED])
        image = template.killed if ending == KILLED else template.stopped
        damage = draw(chance, image, template.earlier)
        try:
            problems = self.problems_of(template, image, [damage])
        except Exception as error:
            problems = [f"the examination ended with {error!r}"]
        return Verdict(seed, ending, damage, problems, [])

    def problems_of(self, template: RotTemplate, image: DirectoryImage, damages: list[Damage]) -> list[str]:
        """What is wrong about the survey or the repair of damages."""
        ours, theirs = self.directory / "repaired", self.directory / "served"
        try:
            for root in (ours, theirs):
                image.write(root)
                for damage in damages:
                    damage.apply(root)
            return list(_Trial(template.known, ours, theirs).run())
        finally:
            for root in (ours, theirs):
                shutil.rmtree(root, ignore_errors=True)


class _Trial:
    def __init__(self, known: Acknowledged, root: Path, served: Path) -> None:
        self._known = known
        self._root = root
        self._served = served
        self._problems: list[str] = []

    def run(self) -> list[str]:
        try:
            read_version(self._root)
        except FlussError:
            return []  # Doctor says the same, by the same call.
        found = self._look()
        self._compare(found, asyncio.run(self._serve()))
        repair(self._root, found)
        left = survey(self._root)
        self._problems += [f"left after the repair: {damage}" for damage in left.damages if damage.repair]
        if all(damage.repair for damage in found.damages):
            self._problems += [f"new after the repair: {damage}" for damage in left.damages]
            asyncio.run(self._use(found))
        return self._problems

    def _look(self) -> Survey:
        before = DirectoryImage.take(self._root)
        found = survey(self._root)
        if DirectoryImage.take(self._root) != before:
            self._problems.append("the survey changed something")
        return found

    async def _serve(self) -> set[TableBucket | None]:
        """The buckets that a server can't give all of, or take rows for; None: it does not start."""
        try:
            storage = await Storage.open(options(self._served))
        except FlussError:
            return {None}
        refused: set[TableBucket | None] = set()
        try:
            for content in self._known.logs:
                try:
                    await self._read(storage, content)
                    (await storage.opened(content.bucket)).last_sequence(1)
                except FlussError:
                    refused.add(content.bucket)
        finally:
            await storage.close()
        return refused

    async def _read(self, storage: Storage, content: LogContent) -> None:
        log = await storage.opened(content.bucket)
        if content.table in (KEYS, NUMBERS):
            await storage.kv.bucket(content.bucket).get_many([b"?"])
        RotReader(storage).batches(content.bucket, log.log_start_offset, log.high_watermark)

    def _compare(self, found: Survey, refused: set[TableBucket | None]) -> None:
        damages = [damage for damage in found.damages if not damage.is_mended]
        is_catalog = any(isinstance(damage, CatalogDamage) for damage in damages)
        if is_catalog != (None in refused):
            self._problems.append(f"the server starts: {None not in refused}, the survey: {damages}")
        if is_catalog:
            return
        for content in self._known.logs:
            prefix = str(DataDirectory.unlocked(self._root).bucket_path(content.bucket).relative_to(self._root))
            said = [damage for damage in damages if str(damage.path).startswith(prefix + "/")]
            if content.bucket in refused and not said:
                self._problems.append(f"{content.bucket} is refused, the survey finds nothing")
            if content.bucket not in refused and any(damage.loss for damage in said):
                self._problems.append(f"{content.bucket} is served, the survey says {said}")

    # --- after the repair

    async def _use(self, found: Survey) -> None:
        logs = {damage.bucket: damage for damage in found.damages if isinstance(damage, LogDamage)}
        is_old = any(isinstance(damage, CatalogDamage) for damage in found.damages)
        storage = await Storage.open(options(self._root))
        try:
            for content in self._known.logs:
                if storage.exists(content.bucket):
                    await self._check_log(storage, content, logs.get(content.bucket))
                elif not is_old:
                    self._problems.append(f"{content.bucket} is gone")
            await self._check_rows(storage, logs)
            await self._check_ids(storage)
        finally:
            await storage.close()

    async def _check_log(self, storage: Storage, content: LogContent, damage: LogDamage | None) -> None:
        bucket = content.bucket
        log = await storage.opened(bucket)
        if log.high_watermark < content.end:
            self._problems.append(f"{bucket} ends at {log.high_watermark}, {content.end} was acknowledged")
        if damage is not None and log.log_start_offset > content.start:
            self._problems.append(f"{bucket} begins at {log.log_start_offset}")
        lost = {
            offset
            for hole in ([] if damage is None else damage.check.holes)
            for offset in range(hole.offset, hole.end_offset)
        }
        found = RotReader(storage).batches(bucket, log.log_start_offset, log.high_watermark)
        RotReader(storage).projected(bucket, log.log_start_offset, log.high_watermark)
        for base, expected in content.batches.items():
            header = parse_header(expected)
            offsets = set(range(base, header.next_offset))
            if offsets & lost:
                empty = all(offset in found and not parse_header(found[offset]).record_count for offset in offsets)
                if not offsets <= lost or not empty:
                    self._problems.append(f"{bucket}: {base} is lost in part, or not empty")
            elif base >= log.log_start_offset and _timeless(found.get(base, b"")) != _timeless(expected):
                self._problems.append(f"{bucket}: another batch at {base}")
        await self._append(storage, content)

    async def _append(self, storage: Storage, content: LogContent) -> None:
        if content.table in (KEYS, NUMBERS):
            return
        log = await storage.opened(content.bucket)
        batch = log_batch([Row(98, 0)], part="a" if content.bucket.partition_id is not None else None)
        appended = log.append(batch, parse_header(batch), now_ms())
        await appended.durable
        if appended.base_offset < content.end:
            self._problems.append(f"{content.bucket}: offset {appended.base_offset} is used twice")

    async def _check_rows(self, storage: Storage, logs: dict[TableBucket, LogDamage]) -> None:
        for name in (KEYS, NUMBERS):
            bucket = TableBucket(self._known.table_ids[name], 0)
            if not storage.exists(bucket):
                continue
            values = await RotReader(storage).rows(bucket)
            if bucket in logs and "earlier rows" in logs[bucket].loss:
                continue
            found = {row[0]: row for row in rows_of(values)} if name == KEYS else numbers_of(values)
            if found != (self._known.keys if name == KEYS else self._known.numbers):
                self._problems.append(f"{name}: other rows")

    async def _check_ids(self, storage: Storage) -> None:
        table_id = await create_table(storage, "new", descriptors("3")[LOG])
        if table_id in self._known.table_ids.values():
            self._problems.append(f"table id {table_id} is used twice")
        bucket = TableBucket(self._known.table_ids[NUMBERS], 0)
        if storage.exists(bucket):
            kv = storage.kv.bucket(bucket)
            await kv.insert_missing(number_keys([_NEW_ID]))
            (value,) = await kv.get_many(number_keys([_NEW_ID]))
            number = numbers_of([value] if value is not None else [])[_NEW_ID]
            if number in self._known.numbers_used:
                self._problems.append(f"number {number} is used twice")


def repair(root: Path, found: Survey) -> None:
    """As `fluss repair --apply` does."""
    directory = DataDirectory.open(root)
    try:
        repairs = Repair(directory, found)
        try:
            for damage in in_order(found.damages):
                if damage.repair:
                    repairs.apply(damage)
        finally:
            repairs.close()
    finally:
        directory.close()


def _timeless(batch: bytes) -> bytes:
    return batch[: _COMMIT_TIME.start] + batch[_COMMIT_TIME.stop :]
