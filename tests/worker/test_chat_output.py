"""Shaping chat deltas: where reasoning and answer meet in one batch, and re-opened blocks."""

from pathlib import Path
from typing import Any

import pytest

from governor_probes.embedded.chat_output import ChatChoice, ChatMessage
from governor_probes.embedded.request import OutputBatch, OutputItem
from governor_probes.embedded.vocabulary import Vocabulary
from governor_probes.landing_state import Channel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    from transformers import AutoTokenizer

    from governor_probes.embedded.settings import SHIPPED_MODEL

    return Vocabulary(AutoTokenizer.from_pretrained(Path(SHIPPED_MODEL)), frozenset({2}))


def items(*parts: tuple[str, Channel]) -> list[OutputItem]:
    return [OutputItem(10 + i, channel, text, None) for i, (text, channel) in enumerate(parts)]


R, T, A = Channel.REASONING, Channel.TAG, Channel.ANSWER


def deltas(choice: ChatChoice, batch: OutputBatch) -> list[tuple[dict[str, Any], list[int]]]:
    return [(c["delta"], c["token_ids"]) for c in choice.choices(batch)]


def test_a_packed_batch_is_split_where_reasoning_and_answer_meet(vocabulary: Vocabulary) -> None:
    choice = ChatChoice(0, vocabulary, token_ids=True)
    batch = OutputBatch(
        items(
            ("a", R), ("</think>", T), ("b", A), ("<think>", T), ("c", R), ("</think>", T), ("d", A)
        ),
        "stop",
        None,
        0,
    )
    assert deltas(choice, batch) == [
        ({"reasoning": "a"}, [10, 11]),
        ({"content": "b"}, [12, 13]),
        ({"reasoning": "c"}, [14, 15]),
        ({"content": "d"}, [16]),
    ]
    assert (choice.tally.completion, choice.tally.reasoning) == (7, 2)


def test_a_lone_tag_is_an_empty_delta_and_a_bare_end_still_finishes(vocabulary: Vocabulary) -> None:
    choice = ChatChoice(0, vocabulary, token_ids=True)
    assert deltas(choice, OutputBatch(items(("</think>", T)), None, None, 0)) == [({}, [10])]
    (end,) = choice.choices(OutputBatch([], "length", None, 0))
    assert (end["delta"], end["finish_reason"]) == ({}, "length")


def test_a_message_gathers_the_choices(vocabulary: Vocabulary) -> None:
    choice, message = ChatChoice(0, vocabulary, token_ids=False), ChatMessage()
    batch = OutputBatch(items(("a", R), ("</think>", T), ("b", A)), "stop", None, 0)
    for part in choice.choices(batch):
        message.add(part)
    assert message.choice()["message"]["reasoning"] == "a"
    assert message.choice()["message"]["content"] == "b"


def test_broken_utf8_waits_for_its_rest(vocabulary: Vocabulary) -> None:
    from governor_probes.embedded.vocabulary import TextDecoder

    ids = vocabulary.encode("é€")
    assert len(ids) == 5  # one token per byte
    decoder = TextDecoder(vocabulary)
    assert [decoder.feed(i) for i in ids] == ["", "é", "", "", "€"]
    assert (decoder.feed(ids[0]), decoder.finish()) == ("", "�")
