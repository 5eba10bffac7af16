"""A byte flipped in a sealed segment: that batch is an error which says where, everything else is served."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import fluss
import fluss.sync
from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES
from fluss.model.errors import ErrorCode
from tests.crash.bucket_files import PATH, BatchPlace, WrittenBucket, places, rows_in, written_bucket
from tests.kit.loads.writers import client_config

BATCHES = [40] * 40
POLL_MS = 500
# The client tells of an error that may pass only when it has lasted this long.
REQUEST_TIMEOUT_MS = 1_000
ERROR_S_MAX = 20.0


def corrupt_sealed_segment(written: WrittenBucket, chance: random.Random) -> tuple[Path, BatchPlace, BatchPlace]:
    """Flip a payload bit; returns the file, the damaged batch and the one behind it."""
    return _corrupt(chance.choice(written.segments()[:-1]), chance)


def _corrupt(segment: Path, chance: random.Random) -> tuple[Path, BatchPlace, BatchPlace]:
    index = chance.randrange(1, len(places(segment)) - 1)
    damaged, following = places(segment)[index : index + 2]
    data = bytearray(segment.read_bytes())
    data[chance.randrange(damaged.start + HEADER_SIZE_BYTES, damaged.end)] ^= 1 << chance.randrange(8)
    segment.write_bytes(data)
    return segment, damaged, following


def test_the_batch_is_an_error_with_file_and_position(tmp_path: Path, chance: random.Random) -> None:
    with written_bucket(tmp_path, BATCHES, buckets=2) as written:
        segment, damaged, following = corrupt_sealed_segment(written, chance)
        size_bytes = segment.stat().st_size
        written.server.start()
        with written.wire() as wire:
            with pytest.raises(fluss.FlussError) as raised:
                wire.fetch(written.table_id, 0, damaged.base_offset)
            assert raised.value.error_code == ErrorCode.CORRUPT_MESSAGE
            assert f"/{segment.name}" in raised.value.message
            # Where the data lies is the server's business, and in its log.
            assert str(segment.parent) not in raised.value.message
            assert str(segment.parent) in written.server.log_file.read_text()
            assert f"byte {damaged.start}" in raised.value.message
            before = wire.fetch(written.table_id, 0, 0)
            assert rows_in(before)
            assert wire.fetch(written.table_id, 0, following.base_offset)[0].base_offset == following.base_offset
            bad, good = wire.fetch_buckets(written.table_id, [(0, damaged.base_offset), (1, 0)])
            assert bad.error_code == ErrorCode.CORRUPT_MESSAGE
            assert good.records
            assert not good.HasField("error_code")
            written.append(wire, 3, bucket=0)
            written.append(wire, 3, bucket=1)
        assert len(rows_in(written.read(1))) == sum(BATCHES) + 3
        assert segment.stat().st_size == size_bytes, "a corrupt segment is evidence and stays as it is"


def test_a_client_gets_rows_up_to_it_and_then_an_error(tmp_path: Path, chance: random.Random) -> None:
    with written_bucket(tmp_path, BATCHES) as written:
        segment, damaged, _ = corrupt_sealed_segment(written, chance)
        written.server.start()
        config = client_config(written.server.bootstrap_servers, {"request-timeout-ms": REQUEST_TIMEOUT_MS})
        with fluss.sync.FlussConnection.create(config) as connection:
            scanner = connection.get_table(PATH).new_scan().create_record_batch_log_scanner()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            seen = 0
            deadline = time.monotonic() + ERROR_S_MAX
            with pytest.raises(fluss.FlussError) as raised:
                while time.monotonic() < deadline:
                    for batch in scanner.poll_record_batch(POLL_MS):
                        assert batch.base_offset == seen
                        seen = batch.last_offset + 1
            assert seen == damaged.base_offset
            assert f"/{segment.name}" in raised.value.message
            scanner.close()


@pytest.mark.parametrize("reads", ["projected", "filtered"])
def test_rot_under_a_running_server_gives_no_wrong_row(tmp_path: Path, chance: random.Random, reads: str) -> None:
    """The server has verified the batch before, and makes new ones of it for such a reader."""
    with written_bucket(tmp_path, BATCHES) as written:
        written.server.start()
        config = client_config(written.server.bootstrap_servers, {"request-timeout-ms": REQUEST_TIMEOUT_MS})
        with fluss.sync.FlussConnection.create(config) as connection:
            scan = connection.get_table(PATH).new_scan()
            first, second = connection.get_table(PATH).get_table_info().get_schema().get_column_names()[:2]
            scan = (
                scan.project_by_name([second]) if reads == "projected" else scan.filter(fluss.col(first).is_not_null())
            )

            def read() -> int:
                with scan.create_record_batch_log_scanner() as scanner:
                    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
                    return scanner.to_arrow().num_rows

            assert read() == sum(BATCHES)
            # The last one, which stays open: what was verified of it is remembered.
            segment, damaged, _ = _corrupt(written.segments()[-1], chance)
            with pytest.raises(fluss.FlussError, match=rf"{segment.name}: corrupt batch at byte {damaged.start}"):
                read()
