"""Random walks through the grammar of actions, with a real vocabulary and llguidance."""

import random
from dataclasses import replace
from functools import cache

import numpy as np

from api_client import embedded_tokenizer
from powerinfer.orchestra.actions import TAGS, Action, Obs, parse_elements
from powerinfer.orchestra.grammar import action_grammar
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import Next
from powerinfer.sampling.grammar.compiled import new_matcher
from powerinfer.sampling.grammar.vocabulary import grammar_vocabulary
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["random_action", "random_text"]

_ENDS = [f"</{tag}>" for tag in TAGS]


def random_action(due: Next, offers: Offers, choice: random.Random) -> Action:
    """An action that the grammar allows, made of random tokens; plans are likelier than answers."""
    if due.most_subtasks and choice.random() < 0.7:
        due = replace(due, may_answer=False)
    scale = 1.0 if choice.random() < 0.05 else 0.1
    (action,) = parse_elements(random_text(action_grammar(due, offers, scale), choice))
    assert not isinstance(action, Obs)
    return action


def random_text(grammar: str, choice: random.Random) -> str:
    """A text that a grammar allows; tokens that go on to the end of a text are likelier."""
    vocabulary = grammar_vocabulary(embedded_tokenizer())
    matcher = new_matcher(vocabulary, SamplingParams(grammar=grammar))
    assert matcher is not None
    words = np.empty(-(-vocabulary.tree.vocab_size // 32), np.uint32)
    ids: list[int] = []
    text = ""
    while not matcher.is_stopped():
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: vocabulary.size]
        allowed[list(vocabulary.end_ids)] = 0
        ending = [each for each in _towards_an_end(text[-20:]) if allowed[each]]
        is_ending = ending and choice.random() < (0.9 if "<" in text[-15:] else 0.1)
        ids.append(int(choice.choice(ending if is_ending else np.flatnonzero(allowed))))
        text += embedded_tokenizer().piece(ids[-1])
        assert matcher.consume_token(ids[-1]), matcher.get_error()
    return embedded_tokenizer().decode(ids)


@cache
def _towards_an_end(tail: str) -> list[int]:
    """Tokens with which an end that has begun goes on, or else with which one begins."""
    begun = [end[: len(end) - at] for end in _ENDS for at in range(1, len(end))]
    rests = [
        end[len(each) :]
        for each in begun
        for end in _ENDS
        if tail.endswith(each) and end.startswith(each)
    ]
    pieces = _pieces()
    return [
        pieces[rest[:size]]
        for rest in rests or _ENDS
        for size in range(1, 9)
        if rest[:size] in pieces
    ]


@cache
def _pieces() -> dict[str, int]:
    tokenizer = embedded_tokenizer()
    return {tokenizer.piece(each): each for each in range(tokenizer.vocab_size)}
