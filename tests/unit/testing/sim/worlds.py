"""Stores that keep every promise, and clients whose calls overlap in all ways: their histories have to be accepted.

A call begins, has its effect, and ends, at three moments drawn from a seed. What its client is not told may have its
effect at any later moment, or never.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from fluss.testing.sim.history import (
    Action,
    ClientCall,
    Delete,
    Fate,
    Get,
    History,
    Poll,
    Row,
    Subscribe,
    Upsert,
)
from fluss.testing.sim.models import RegisterModel

TABLE = "t"


@dataclass(eq=False)
class Begun:
    """A call on its way."""

    call: ClientCall
    effect: Callable[[], Any]
    fate: Fate
    has_effect: bool
    is_pending: bool = True
    result: Any = None


class World:
    """Clients that call at random; a subclass draws the calls and has the store."""

    def __init__(self, seed: int, clients: int, *, doubts: float = 0.1) -> None:
        self.chance = random.Random(seed)
        self.time_s = 0.0
        self.history = History(lambda: self.time_s)
        self.clients = [f"c{number}" for number in range(clients)]
        self._idle = list(self.clients)
        self._open: list[Begun] = []
        self._late: list[Begun] = []
        self._doubts = doubts

    def draw(self, client: str) -> tuple[Action, Callable[[], Any]]:
        raise NotImplementedError

    def run(self, calls: int) -> History:
        while len(self.history.calls) < calls:
            self.step()
        while self._open:
            self.step(may_begin=False)
        return self.history

    def step(self, *, may_begin: bool = True) -> None:
        self.time_s += self.chance.random() / 1_000
        if self._late and self.chance.random() < 0.05:
            late = self._late.pop(self.chance.randrange(len(self._late)))
            late.effect()
        if may_begin and self._idle and self.chance.random() < 0.5:
            self._begin(self._idle.pop(self.chance.randrange(len(self._idle))))
        elif self._open:
            self._go_on(self.chance.choice(self._open))

    def _begin(self, client: str) -> None:
        action, effect = self.draw(client)
        fate = Fate.DONE
        if self.chance.random() < self._doubts and not isinstance(action, Subscribe):
            fate = self.chance.choice([Fate.UNKNOWN, Fate.DOUBTFUL, Fate.FAILED])
        # A poll that nobody gets takes no records with it.
        may_have = fate is not Fate.FAILED and not isinstance(action, Poll)
        has_effect = fate is Fate.DONE or (may_have and self.chance.random() < 0.5)
        self._open.append(Begun(self.history.begin(client, action), effect, fate, has_effect))

    def _go_on(self, begun: Begun) -> None:
        if begun.has_effect and begun.is_pending and (begun.fate is not Fate.UNKNOWN or self.chance.random() < 0.3):
            begun.result, begun.is_pending = begun.effect(), False
            return
        self._open.remove(begun)
        self._idle.append(begun.call.client)
        self.history.end(begun.call, begun.result if begun.fate is Fate.DONE else None, begun.fate)
        if begun.has_effect and begun.is_pending:
            self._late.append(begun)


class KeyWorld(World):
    """A primary-key table by its model."""

    def __init__(
        self, seed: int, model: RegisterModel, clients: int = 4, keys: int = 3, *, doubts: float = 0.1
    ) -> None:
        super().__init__(seed, clients, doubts=doubts)
        self.rows: dict[Hashable, Row | None] = {}
        self._model = model
        self._keys = keys
        self._values = 0

    def draw(self, client: str) -> tuple[Action, Callable[[], Any]]:
        key, kind = self.chance.randrange(self._keys), self.chance.random()
        if kind < 0.5:
            return Get(TABLE, key), lambda: self.rows.get(key)
        columns = self.chance.choice([(), (), (0, 1), (0, 2)])
        write = Delete(TABLE, key, columns) if kind < 0.6 else self._upsert(key, columns)
        return write, lambda: self._apply(key, write)

    def _upsert(self, key: int, columns: tuple[int, ...]) -> Upsert:
        self._values += 1
        values = self._values, self.chance.choice([None, 1, 2, self._values])
        row = tuple(value if not columns or at in columns else None for at, value in enumerate((key, *values)))
        return Upsert(TABLE, key, row, columns)

    def _apply(self, key: Hashable, write: Upsert | Delete) -> None:
        self.rows[key] = self._model.apply(self.rows.get(key), write)
