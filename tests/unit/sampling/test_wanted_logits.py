"""The one rule that says which logits a choice looks at."""

import math

import pytest

from powerinfer import SamplingParams
from powerinfer.ops.protocol import WantedLogits
from powerinfer.sampling.wanted_logits import wanted_logits

VOCAB = 16000
GREEDY = {"temperature": 0.0}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, WantedLogits(40)),
        (GREEDY, WantedLogits(1)),
        ({**GREEDY, "top_k": 0, "top_p": 0.5}, WantedLogits(1)),
        ({"top_k": 3, "top_p": 0.5, "min_p": 0.2}, WantedLogits(3)),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.1}, WantedLogits(1, -math.log(0.1))),
        ({"repeat_penalty": 2.0, "repeat_last_n": 0}, WantedLogits(40)),
    ],
)
def test_choices_among_few(settings: dict[str, float], wanted: WantedLogits) -> None:
    assert wanted_logits(SamplingParams(**settings), 0, VOCAB) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 0, "top_p": 0.9},
        {"top_k": VOCAB},
        {**GREEDY, "logprobs": 0},
        {**GREEDY, "regex": "a+"},
        {**GREEDY, "logit_bias": {5: 1.0}},
        {**GREEDY, "logits_processors": (lambda _ids, logits: logits,)},
        {**GREEDY, "repeat_penalty": 1.1},
        {**GREEDY, "presence_penalty": 0.1},
        {**GREEDY, "frequency_penalty": -0.1},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_other_choices_want_all(settings: dict[str, object]) -> None:
    assert wanted_logits(SamplingParams(**settings), 0, VOCAB) is None  # type: ignore[arg-type]


def test_banned_tokens_make_room() -> None:
    assert wanted_logits(SamplingParams(top_k=5), 3, VOCAB) == WantedLogits(8)
