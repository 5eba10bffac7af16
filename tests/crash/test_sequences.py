"""Sequences of a writer, sent by hand: the next is stored, a repeat gets its first answer, all else is refused."""

from __future__ import annotations

import random
from pathlib import Path

import fluss
from fluss.model.errors import ErrorCode
from tests.crash.servers import new_server
from tests.kit.loads.oracle import Bucket, Fate, WriterLog, check
from tests.kit.loads.stored import read_stored
from tests.kit.rows import Row, descriptor, wire_batch
from tests.kit.wire import Wire

PATH = fluss.TablePath("fluss", "sequences")
REMEMBERED = 5
STEPS = 600
RESTART_SHARE = 0.01
SEQUENCE_MAX = 2**31 - 1


class Model:
    """What the server must remember of one writer id."""

    def __init__(self, writer_id: int, log: WriterLog) -> None:
        self.writer_id = writer_id
        self.log = log
        self.next_sequence = 0
        self.remembered: list[tuple[int, list[Row], int]] = []

    def stored(self, rows: list[Row], base_offset: int) -> None:
        self.log.settle(rows, Fate.ACKNOWLEDGED)
        self.remembered = [*self.remembered, (self.next_sequence, rows, base_offset)][-REMEMBERED:]
        self.next_sequence += 1

    def wrong_sequence(self, chance: random.Random) -> int:
        """Stale, skipping ahead, far ahead, or no sequence at all; never the next nor one that is remembered."""
        oldest = self.remembered[0][0] if self.remembered else 0
        candidates = [self.next_sequence + 1, self.next_sequence + chance.randint(2, 1_000), SEQUENCE_MAX, -1]
        if oldest > 0:
            candidates += [oldest - 1, chance.randrange(oldest)]
        return chance.choice(candidates)


def test_next_repeated_and_wrong_sequences(tmp_path: Path, chance: random.Random) -> None:
    with new_server(tmp_path) as server:
        wire = Wire(server.bootstrap_servers)
        table_id = wire.create_table(PATH, descriptor(1))
        models = [Model(wire.new_writer_id(), WriterLog(number, PATH.table_name)) for number in range(3)]
        latest = 0
        counts = {"next": 0, "repeat": 0, "wrong": 0}
        for _ in range(STEPS):
            if chance.random() < RESTART_SHARE:
                wire.close()
                server.restart(graceful=chance.random() < 0.3)
                wire = Wire(server.bootstrap_servers)
            model = chance.choice(models)
            kind = chance.choice(["next", "repeat", "wrong"] if model.remembered else ["next", "wrong"])
            counts[kind] += 1
            if kind == "repeat":
                sequence, rows, base_offset = chance.choice(model.remembered)
                answer = wire.produce(table_id, 0, wire_batch(rows, model.writer_id, sequence))
                assert (answer.error_code, answer.base_offset) == (0, base_offset)
                continue
            rows = model.log.begin(chance.randint(1, 20))
            sequence = model.next_sequence if kind == "next" else model.wrong_sequence(chance)
            answer = wire.produce(table_id, 0, wire_batch(rows, model.writer_id, sequence))
            if kind == "wrong":
                assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, f"sequence {sequence}"
                model.log.settle(rows, Fate.REFUSED)
                continue
            assert (answer.error_code, answer.base_offset) == (0, latest)
            model.stored(rows, answer.base_offset)
            latest += len(rows)
        wire.close()
        stored = read_stored(server.bootstrap_servers, [(PATH, 1)])
    assert min(counts.values()) > STEPS / 10
    assert stored[Bucket(PATH.table_name, 0)].latest == latest
    check([model.log for model in models], [], stored)
