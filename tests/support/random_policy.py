"""Random walks through the grammar of actions, with a real vocabulary and llguidance."""

import random
from functools import cache

import numpy as np

from api_client import embedded_tokenizer
from powerinfer.orchestra.actions import Action, Obs, parse_elements
from powerinfer.orchestra.grammar import action_grammar
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import Next
from powerinfer.sampling.grammar.compiled import new_matcher
from powerinfer.sampling.grammar.vocabulary import grammar_vocabulary
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["random_action", "random_text"]


def random_action(due: Next, offers: Offers, choice: random.Random) -> Action:
    """An action that the grammar allows, made of random tokens."""
    (action,) = parse_elements(random_text(action_grammar(due, offers), choice))
    assert not isinstance(action, Obs)
    return action


def random_text(grammar: str, choice: random.Random) -> str:
    """A text that a grammar allows; tokens that may end a text inside it are likelier."""
    vocabulary = grammar_vocabulary(embedded_tokenizer())
    matcher = new_matcher(vocabulary, SamplingParams(grammar=grammar))
    assert matcher is not None
    words = np.empty(-(-vocabulary.tree.vocab_size // 32), np.uint32)
    ids: list[int] = []
    while not matcher.is_stopped():
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: vocabulary.size]
        allowed[list(vocabulary.end_ids)] = 0
        found = np.flatnonzero(allowed)
        closing = found[_tag_parts()[found]]
        taken = closing if len(closing) and choice.random() < 0.7 else found
        ids.append(int(choice.choice(taken)))
        assert matcher.consume_token(ids[-1]), matcher.get_error()
    return embedded_tokenizer().decode(ids)


@cache
def _tag_parts() -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """For each token, whether it may be a part of a tag."""
    tokenizer = embedded_tokenizer()
    pieces = [tokenizer.piece(each) for each in range(tokenizer.vocab_size)]
    return np.array(
        [bool(each) and each in "</route></subtask></verify></final_answer>" for each in pieces]
    )
