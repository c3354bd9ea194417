"""How often somebody may guess the token."""

from __future__ import annotations

import asyncio

import pytest

from ontrack.pipeline.dashboard import tries
from ontrack.pipeline.dashboard.tries import ALL_MAX, WAITING_MAX, TooManyTries, Tries

RIGHT = "right"


@pytest.fixture
def kept() -> Tries:
    return Tries(lambda given: given == RIGHT)


async def many(kept: Tries, tried: list[tuple[str, str]]) -> list[bool | str]:
    """Try all at once; what was not looked at is "busy"."""

    async def one(address: str, given: str) -> bool | str:
        try:
            return await kept.look(address, given)
        except TooManyTries:
            return "busy"

    return await asyncio.gather(*(one(address, given) for address, given in tried))


async def test_right_tokens_never_wait(kept: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "WRONG_TOKEN_S", 60.0)
    async with asyncio.timeout(5):
        for _ in range(3):
            assert await many(kept, [("10.0.0.1", RIGHT)] * WAITING_MAX) == [True] * WAITING_MAX


async def test_a_right_one_among_many_wrong_ones_is_not_told_sooner(
    kept: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "WRONG_TOKEN_S", 0.01)
    told: list[str] = []

    async def one(given: str) -> None:
        await kept.look("10.0.0.1", given)
        told.append(given)

    guesses = ["a", "b", RIGHT, "c"]
    await asyncio.gather(*map(one, guesses))
    assert told == guesses


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),  # one customer's addresses
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("", "", True),  # a socket of the machine's own has no address
    ],
)
async def test_clients_do_not_wait_for_each_other_but_one_client_does_for_itself(
    kept: Tries, monkeypatch: pytest.MonkeyPatch, one: str, other: str, is_same: bool
) -> None:
    monkeypatch.setattr(tries, "WRONG_TOKEN_S", 0.05)
    guessed = many(kept, [(one, "wrong")] * (WAITING_MAX + 1))
    flood = asyncio.create_task(guessed)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await many(kept, [(other, RIGHT)]) == (["busy"] if is_same else [True])
    assert await flood == [False] * (WAITING_MAX + 1)


async def test_all_clients_together_are_bounded_and_nothing_is_kept_of_them(kept: Tries) -> None:
    crowd = [(f"10.0.{number}.1", "wrong") for number in range(200)]
    found = await many(kept, crowd)
    assert found.count("busy") == 200 - ALL_MAX
    assert kept._clients == {}
    assert await many(kept, [("10.9.9.9", RIGHT)]) == [True]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "WRONG_TOKEN_S", 0.0)
