"""Watchers: rows to those who look, bounded, ended with the request."""

import json
from collections.abc import AsyncIterator

import pytest

from governor.core.signals import SignalRow
from governor.gateway.watchers import MOST_PENDING_ROWS, Watchers
from tests.fake_worker import within


def row(position: int, rid: str = "a") -> SignalRow:
    return SignalRow(rid, 0, position, (position,), 0.5, None, None, 4)


async def following(lines: AsyncIterator[bytes]) -> list[int]:
    return [json.loads(line)["position"] async for line in lines]


async def test_a_watcher_sees_the_rows_of_its_request_until_it_ends() -> None:
    watchers = Watchers()
    lines = watchers.lines("a")
    watchers.publish(row(1))
    watchers.publish(row(9, rid="b"))
    watchers.publish(row(2))
    watchers.end("a")
    assert await within(following(lines)) == [1, 2]
    assert watchers._queues == {}


async def test_a_request_that_ends_before_the_first_look_ends_the_watcher_too() -> None:
    watchers = Watchers()
    lines = watchers.lines("a")
    watchers.end("a")
    assert await within(following(lines)) == []


async def test_a_row_says_what_is_known_and_null_for_the_rest() -> None:
    watchers = Watchers()
    lines = watchers.lines("a")
    watchers.publish(row(1))
    line = await within(anext(lines))
    assert line.endswith(b"\n")
    assert json.loads(line) == {"position": 1, "entropy": 0.5, "margin": None, "flags": 4}


async def test_a_slow_watcher_loses_its_oldest_rows_and_never_the_end() -> None:
    watchers = Watchers()
    slow = watchers.lines("a")
    for position in range(MOST_PENDING_ROWS + 100):
        watchers.publish(row(position))
    watchers.end("a")
    seen = await within(following(slow))
    assert len(seen) < MOST_PENDING_ROWS
    assert seen[-1] == MOST_PENDING_ROWS + 99


async def test_a_watcher_that_leaves_is_forgotten_and_others_stay() -> None:
    watchers = Watchers()
    leaves, stays = watchers.lines("a"), watchers.lines("a")
    watchers.publish(row(1))
    assert await within(anext(leaves))
    await leaves.aclose()  # type: ignore[attr-defined]
    watchers.publish(row(2))
    watchers.end("a")
    assert await within(following(stays)) == [1, 2]
    assert watchers._queues == {}


def test_publishing_to_nobody_keeps_nothing() -> None:
    watchers = Watchers()
    watchers.publish(row(1))
    watchers.end("a")
    assert watchers._queues == {}


@pytest.mark.parametrize("watchers_count", [1, 3])
async def test_every_watcher_gets_every_row(watchers_count: int) -> None:
    watchers = Watchers()
    all_lines = [watchers.lines("a") for _ in range(watchers_count)]
    watchers.publish(row(1))
    watchers.end("a")
    assert [await within(following(lines)) for lines in all_lines] == [[1]] * watchers_count
