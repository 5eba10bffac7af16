"""Runs measurements with a client of Kafka, told by JSON lines. The argument is the client: aiokafka, confluent-kafka.

A topic with one partition stands for a table with one bucket; a row is 52 bytes whose columns Kafka does not know.
Settings are those the clients ship with, but for acks=1; a `linger.ms` may be given for latencies.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from data import deserialized, serialized  # type: ignore[import-not-found, unused-ignore]
from worker_loop import PAUSE_S, Clock, Commands, serve  # type: ignore[import-not-found, unused-ignore]

POLL_MS = 100
POLL_ROWS = 10_000
# Until a new consumer has found its place and waits for what comes.
SETTLING_POLLS = 10
QUEUE_FULL_WAIT_S = 0.05
Config = dict[str, str]


class AioKafka:
    """Writes and reads with aiokafka."""

    async def create(self, config: Config, table: str) -> None:
        from aiokafka.admin import NewTopic  # type: ignore[import-not-found, unused-ignore]

        async with self._admin(config) as admin:
            await admin.create_topics([NewTopic(table, 1, 1)])

    async def drop(self, config: Config, table: str) -> None:
        async with self._admin(config) as admin:
            await admin.delete_topics([table])

    @asynccontextmanager
    async def _admin(self, config: Config) -> AsyncIterator[Any]:
        from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-not-found, unused-ignore]

        admin = AIOKafkaAdminClient(bootstrap_servers=config["bootstrap.servers"])
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    @asynccontextmanager
    async def producer(self, config: Config, table: str) -> AsyncIterator[Any]:
        from aiokafka import AIOKafkaProducer  # type: ignore[import-not-found, unused-ignore]

        linger_ms = int(config.get("linger.ms", 0))
        async with AIOKafkaProducer(
            bootstrap_servers=config["bootstrap.servers"], acks=1, linger_ms=linger_ms
        ) as producer:
            await producer.partitions_for(table)
            yield producer

    async def write(self, producer: Any, table: str, values: Iterable[bytes]) -> None:
        for value in values:
            await producer.send(table, value, partition=0)
        await producer.flush()

    @asynccontextmanager
    async def consumer(self, config: Config, table: str) -> AsyncIterator[Any]:
        from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-not-found, unused-ignore]

        async with AIOKafkaConsumer(bootstrap_servers=config["bootstrap.servers"]) as consumer:
            consumer.assign([TopicPartition(table, 0)])
            await consumer.seek_to_beginning()
            yield consumer

    async def poll(self, consumer: Any) -> list[bytes]:
        found = await consumer.getmany(timeout_ms=POLL_MS)
        return [message.value for messages in found.values() for message in messages]


class ConfluentKafka:
    """Writes and reads with confluent-kafka, whose calls block; nothing else runs in this process."""

    async def create(self, config: Config, table: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[import-not-found, unused-ignore]

        admin = AdminClient({"bootstrap.servers": config["bootstrap.servers"]})
        admin.create_topics([NewTopic(table, 1, 1)])[table].result()

    async def drop(self, config: Config, table: str) -> None:
        from confluent_kafka.admin import AdminClient  # type: ignore[import-not-found, unused-ignore]

        admin = AdminClient({"bootstrap.servers": config["bootstrap.servers"]})
        admin.delete_topics([table])[table].result()

    @asynccontextmanager
    async def producer(self, config: Config, table: str) -> AsyncIterator[Any]:
        from confluent_kafka import Producer  # type: ignore[import-not-found, unused-ignore]

        producer = Producer({**config, "acks": 1})
        producer.list_topics(table)
        yield producer
        producer.flush()

    async def write(self, producer: Any, table: str, values: Iterable[bytes]) -> None:
        for value in values:
            while True:
                try:
                    producer.produce(table, value, partition=0)
                    break
                except BufferError:
                    producer.poll(QUEUE_FULL_WAIT_S)
        if left := producer.flush():
            raise ValueError(f"{left} rows were not acknowledged")

    @asynccontextmanager
    async def consumer(self, config: Config, table: str) -> AsyncIterator[Any]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition  # type: ignore[import-not-found, unused-ignore]

        consumer = Consumer({"bootstrap.servers": config["bootstrap.servers"], "group.id": table})
        # Opens the connections, which it would do later otherwise.
        consumer.get_watermark_offsets(TopicPartition(table, 0))
        consumer.assign([TopicPartition(table, 0, OFFSET_BEGINNING)])
        yield consumer
        consumer.close()

    async def poll(self, consumer: Any) -> list[bytes]:
        return [message.value() for message in consumer.consume(POLL_ROWS, POLL_MS / 1e3)]

    async def poll_soon(self, consumer: Any) -> list[bytes]:
        """What comes first: `consume` would wait for all rows or the end of its time."""
        message = consumer.poll(POLL_MS / 1e3)
        return [] if message is None else [message.value()]


CLIENTS: dict[str, type[AioKafka | ConfluentKafka]] = {"aiokafka": AioKafka, "confluent-kafka": ConfluentKafka}


class KafkaWorker(Commands):  # type: ignore[misc, unused-ignore]
    """The commands of the other worker that mean something here, by the same names."""

    def __init__(self, send: Any) -> None:
        super().__init__(send)
        self._client = CLIENTS[sys.argv[1]]()

    async def create_table(self, config: Config, table: str, buckets: int, properties: Config) -> None:
        await self._client.create(config, table)

    async def drop_table(self, config: Config, table: str) -> None:
        await self._client.drop(config, table)

    async def append_rows(self, config: Config, table: str, rows: int, server_pid: int) -> dict[str, Any]:
        data = serialized(rows)
        async with self._client.producer(config, table) as producer:
            with Clock(server_pid) as clock:
                await self._client.write(producer, table, data)
        return {"rows": rows, **clock.figures()}

    async def poll_rows(self, config: Config, table: str, rows: int, server_pid: int) -> dict[str, Any]:
        seen = total = 0
        async with self._client.consumer(config, table) as consumer:
            with Clock(server_pid) as clock:
                while seen < rows:
                    values = await self._client.poll(consumer)
                    seen += len(values)
                    for value in values:
                        number, _, _, _, _, quality = deserialized(value)
                        total += number * quality
        return {"rows": seen, "checksum": total, **clock.figures()}

    async def append_one_by_one(
        self, config: Config, table: str, rows: int, nodelay: bool, paused: bool
    ) -> list[tuple[float, float]]:
        times = []
        pauses = random.Random(11)
        async with self._client.producer(config, table) as producer:
            for value in serialized(rows):
                if paused:
                    await asyncio.sleep(pauses.uniform(*PAUSE_S))
                sent = time.monotonic()
                await self._client.write(producer, table, [value])
                times.append((sent, time.monotonic()))
        return times

    async def tail(self, config: Config, table: str, rows: int, nodelay: bool) -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []
        poll = getattr(self._client, "poll_soon", self._client.poll)
        async with self._client.consumer(config, table) as consumer:
            for _ in range(SETTLING_POLLS):
                await poll(consumer)
            self._send({"event": "tailing", "items": [table]})
            while len(seen) < rows:
                values = await poll(consumer)
                now = time.monotonic()
                seen.extend((deserialized(value)[0], now) for value in values)
        return seen


if __name__ == "__main__":
    serve(KafkaWorker)
