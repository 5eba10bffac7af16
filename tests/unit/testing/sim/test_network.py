"""A simulated network: bytes arrive in order, late, in pieces, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fluss.testing.sim.network import Hop, SimNetwork, Weather
from fluss.testing.sim.scheduler import Scheduler, SimProcess, SimThread, Trace
from fluss.testing.sim.waiting import SimLoop

SERVER, CLIENT = "10.0.0.1", "10.0.0.2"


class Peer(asyncio.BufferedProtocol):
    """Keeps what it gets, and why it ended."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.lost: list[Exception | None] = []
        self._buffer = bytearray(64)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Net:
    """A server that takes connections, and a client that does what a test says."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed, Trace())
        self.scheduler.adopt(SimProcess("test", "nowhere"))
        self.network = SimNetwork(self.scheduler, Weather(pieces_share=0.5, gives_up_s=5))
        self.server = SimProcess("server", SERVER)
        self.accepted: list[Peer] = []
        self.on_loop(self.server, self._serve)
        self.scheduler.sleep(1)

    async def _serve(self) -> None:
        def accept() -> Peer:
            self.accepted.append(Peer())
            return self.accepted[-1]

        await self.network.listen(accept, self.network.bind(SERVER, 1), 10)
        await asyncio.sleep(10_000)

    def on_loop(self, process: SimProcess, main: Callable[[], Coroutine[Any, Any, None]]) -> SimThread:
        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: SimLoop(self.scheduler)) as runner:
                runner.run(main())

        thread = SimThread(self.scheduler, process, process.name, run)
        thread.start()
        return thread

    def client(self, main: Callable[[Peer], Coroutine[Any, Any, None]]) -> None:
        """Connect, and do something until it is done."""

        async def connected() -> None:
            await main(await self.network.connect(Peer, SERVER, 1))

        process = SimProcess("client", CLIENT)
        self.on_loop(process, connected).join()
        assert process.failure is None


def test_bytes_arrive_once_and_in_order() -> None:
    net = Net()
    sent = [bytes([number]) * (number * 37) for number in range(1, 60)]

    async def main(peer: Peer) -> None:
        for data in sent:
            peer.transport.write(data)
        await asyncio.sleep(1)

    net.client(main)
    assert bytes(net.accepted[0].got) == b"".join(sent)


def test_what_meets_a_cut_arrives_when_it_is_mended() -> None:
    net = Net()

    async def main(peer: Peer) -> None:
        peer.transport.write(b"a" * 100)
        net.network.cut(Hop(CLIENT, SERVER))
        peer.transport.write(b"b" * 100)
        await asyncio.sleep(2)
        assert net.accepted[0].got == b""
        net.accepted[0].transport.write(b"the other way")
        await asyncio.sleep(1)
        assert peer.got == b"the other way"
        net.network.mend(Hop(CLIENT, SERVER))
        await asyncio.sleep(1)

    net.client(main)
    assert net.accepted[0].got == b"a" * 100 + b"b" * 100


def test_who_gets_no_answer_for_long_gives_up() -> None:
    net = Net()

    async def main(peer: Peer) -> None:
        net.network.cut(Hop(CLIENT, SERVER))
        peer.transport.write(b"anybody?")
        await asyncio.sleep(10)
        assert isinstance(peer.lost[0], OSError)

    net.client(main)


def test_a_host_that_was_without_power_knows_no_connections() -> None:
    net = Net()

    async def main(peer: Peer) -> None:
        await asyncio.sleep(1)
        net.network.power_off(SERVER)
        net.scheduler.kill(net.server)
        await asyncio.sleep(1)
        assert peer.lost == []
        net.network.power_on(SERVER)
        peer.transport.write(b"still there?")
        await asyncio.sleep(1)
        assert isinstance(peer.lost[0], ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await net.network.connect(Peer, SERVER, 1)

    net.client(main)


def test_the_host_of_a_killed_process_closes_its_connections() -> None:
    for seed in range(5):
        net = Net(seed)

        async def main(peer: Peer) -> None:
            net.network.end_of(net.server)  # noqa: B023
            net.scheduler.kill(net.server)  # noqa: B023
            await asyncio.sleep(1)
            assert len(peer.lost) == 1

        net.client(main)
