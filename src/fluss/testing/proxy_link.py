"""One proxied connection: two streams of frames and the faults they suffer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct

from fluss.testing.faults import Action, Direction, Fault, FaultRules, ProxyCounters

_LENGTH = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhi")  # api key, api version, request id
_RESPONSE_HEAD = struct.Struct(">Bi")  # type, request id

_FRAME_BYTES_MAX = 256 * 1024 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """Forwards whole frames between a client and the target until one side closes or a fault cuts it."""

    def __init__(
        self,
        client: Streams,
        target: Streams,
        *,
        rules: FaultRules,
        counters: ProxyCounters,
        thawed: asyncio.Event,
        seed: str,
    ) -> None:
        self._client, self._target = client, target
        self._rules, self._counters, self._thawed = rules, counters, thawed
        # Each direction draws for itself, so that the two cannot change each other's luck by timing.
        self._chance = {direction: random.Random(f"{seed}/{direction.value}") for direction in Direction}
        self._api_keys: dict[int, int] = {}

    async def run(self) -> None:
        (client_in, client_out), (target_in, target_out) = self._client, self._target
        pumps = [
            asyncio.ensure_future(self._pump(Direction.REQUEST, client_in, target_out)),
            asyncio.ensure_future(self._pump(Direction.RESPONSE, target_in, client_out)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            # `close` still delivers what is written: a frame cut in the middle arrives up to the cut.
            client_out.close()
            target_out.close()

    def cut(self) -> None:
        """End the connection at once on both sides; what is on the way is lost."""
        self._client[1].transport.abort()
        self._target[1].transport.abort()

    async def _pump(self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while (frame := await self._read_frame(source)) is not None:
                api_key = self._identify(direction, frame)
                if not await self._forward(direction, api_key, frame, sink):
                    return

    async def _read_frame(self, source: asyncio.StreamReader) -> bytes | None:
        prefix = await source.readexactly(_LENGTH.size)
        (length,) = _LENGTH.unpack(prefix)
        if not 0 <= length <= _FRAME_BYTES_MAX:
            self._counters.invalid_frames += 1
            return None
        return prefix + await source.readexactly(length)

    def _identify(self, direction: Direction, frame: bytes) -> int | None:
        """The api key of a frame; a response is known by its request, None when it names none."""
        body = memoryview(frame)[_LENGTH.size :]
        if direction is Direction.REQUEST:
            if len(body) < _REQUEST_HEAD.size:
                return None
            api_key, _, request_id = _REQUEST_HEAD.unpack_from(body)
            self._api_keys[request_id] = api_key
            return int(api_key)
        if len(body) < _RESPONSE_HEAD.size:
            return None
        return self._api_keys.pop(_RESPONSE_HEAD.unpack_from(body)[1], None)

    async def _forward(
        self, direction: Direction, api_key: int | None, frame: bytes, sink: asyncio.StreamWriter
    ) -> bool:
        """Forward one frame or do to it what the rules say; False ends the connection."""
        struck = self._rules.strike(direction, api_key, self._chance[direction])
        for fault in struck:
            self._counters.faults[fault.action] += 1
        if struck:
            await asyncio.sleep(sum(fault.delay_s for fault in struck))
        await self._thawed.wait()
        harm = next((fault for fault in struck if fault.action is not Action.DELAY), None)
        payload = self._surviving_part(direction, frame, harm)
        sink.write(payload)
        if len(payload) == len(frame):
            self._counters.forwarded(direction, api_key, len(frame))
        else:
            self._counters.bytes[direction] += len(payload)
            if api_key is not None:
                self._counters.dropped_by_api[api_key] += 1
        await sink.drain()
        return harm is None or harm.action is Action.DROP

    def _surviving_part(self, direction: Direction, frame: bytes, harm: Fault | None) -> bytes:
        if harm is None or harm.action is Action.FORWARD_AND_CUT:
            return frame
        if harm.action is Action.CUT_MID_FRAME:
            return frame[: self._chance[direction].randint(1, len(frame) - 1)]
        return b""
