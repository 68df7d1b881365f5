"""stories260K, a real trained model: greedy decoding gives the text of its model card, exactly."""

from pathlib import Path

import numpy as np
import pytest

from backends import BACKENDS, using
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.ops.backend import Backend
from powerinfer.tokenizer import Tokenizer

FIRST_IDS = [403, 407, 261, 378, 432, 383, 286, 261, 376, 298]


@pytest.fixture(scope="module")
def card_text(stories260k: Path) -> str:
    """The first sample of the model card: between the command and the end of its code block."""
    card = (stories260k.parent / "stories260K.md").read_text(encoding="utf8")
    sample = card.split("-t 0.0\n", 1)[1]
    return sample.split("\n```", 1)[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_text_is_the_model_cards(backend: str, stories260k: Path, card_text: str) -> None:
    file = open_gguf(stories260k)
    with using(backend) as ops:
        token_ids = _greedy(stories260k, ops, 256)
    assert token_ids[:10] == FIRST_IDS
    assert Tokenizer.from_gguf(file).decode(token_ids).strip() == card_text.strip()


@pytest.mark.parametrize("backend", BACKENDS)
def test_prefill_of_the_text_predicts_the_text(backend: str, stories260k: Path) -> None:
    """As a prompt the text takes the other kernels, matrix times matrix, to the same ids."""
    with using("reference") as ops:
        token_ids = _greedy(stories260k, ops, 100)
    with using(backend) as ops:
        model = load_model(open_gguf(stories260k), ops)
        cache = model.new_cache()
        logits = model.forward(cache.batch([(0, [1, *token_ids[:-1]], 0)], [True]), cache)
    assert logits.argmax(axis=1).tolist() == token_ids


def _greedy(path: Path, ops: Backend, num_tokens: int) -> list[int]:
    model = load_model(open_gguf(path), ops)
    cache = model.new_cache()
    token_ids = [1]
    for position in range(num_tokens):
        logits = model.forward(cache.batch([(0, token_ids[-1:], position)], [position == 0]), cache)
        token_ids.append(int(np.argmax(logits[-1])))
    return token_ids[1:]
