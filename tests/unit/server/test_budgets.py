"""Memory shared by all connections."""

from __future__ import annotations

from fluss.server.budgets import RESPONSE_BYTES_MIN, RequestBudget, ResponseBudget


def test_reservations_are_granted_in_turn() -> None:
    budget = RequestBudget(10)
    granted: list[str] = []

    def waiter(name: str, wanted: bool = True) -> bool:
        granted.append(name)
        return wanted

    assert budget.reserve(8, lambda: waiter("never"))
    assert not budget.reserve(6, lambda: waiter("a", wanted=False))
    assert not budget.reserve(9, lambda: waiter("b"))
    assert not budget.reserve(1, lambda: waiter("c")), "a small one does not overtake"
    budget.release(4)
    assert granted == ["a"], "a left its turn unused; b does not fit yet"
    assert budget.used_bytes == 4
    budget.release(4)
    assert granted == ["a", "b", "c"]
    assert budget.used_bytes == 10


def test_counted_bytes_hold_back_reservations() -> None:
    budget = RequestBudget(10)
    budget.add(11)
    assert budget.exceeded
    assert not budget.reserve(1, lambda: True)
    budget.release(11)
    assert budget.used_bytes == 1


def test_responses_shrink_when_clients_do_not_read() -> None:
    budget = ResponseBudget(100 * RESPONSE_BYTES_MIN)
    allowances = []
    for _ in range(40):
        allowances.append(budget.allowance_bytes())
        budget.add(allowances[-1])
    assert allowances == sorted(allowances, reverse=True)
    assert allowances[-1] == RESPONSE_BYTES_MIN
    assert budget.unsent_bytes <= 110 * RESPONSE_BYTES_MIN + 40 * RESPONSE_BYTES_MIN
    budget.release(budget.unsent_bytes)
    assert budget.allowance_bytes() == allowances[0]
