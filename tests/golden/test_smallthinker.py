"""SmallThinker against the model in numpy_smallthinker.py."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends import BACKENDS, using
from numpy_smallthinker import TOKEN_IDS, WINDOW, SmallThinker
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.ops.reference.ops import ReferenceOps
from tiny_models import TINY_EXPERTS, TinyModel, write_model
from tolerances import assert_close


def recipe(gating: int, *, has_window: bool) -> TinyModel:
    """Five layers: the first and the last see everything where there is a window."""
    metadata = {"expert_gating_func": gating, "rope.freq_base": 500.0}
    if has_window:
        metadata["attention.sliding_window"] = WINDOW
    return replace(
        TINY_EXPERTS["smallthinker"],
        num_layers=5,
        num_used_experts=3,
        is_tied=not has_window,
        metadata=metadata,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "decode"])
@pytest.mark.parametrize("sparsity", ["off", "exact"])
@pytest.mark.parametrize("is_down_transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("has_window", [False, True], ids=["4B", "21B"])
@pytest.mark.parametrize("gating", [1, 2], ids=["softmax", "sigmoid"])
def test_logits_are_those_of_the_description(
    backend: str,
    sparsity: str,
    gating: int,
    tmp_path: Path,
    *,
    is_prompt: bool,
    has_window: bool,
    is_down_transposed: bool,
) -> None:
    model = replace(recipe(gating, has_window=has_window), is_down_transposed=is_down_transposed)
    file = open_gguf(write_model(tmp_path / "m.gguf", model))
    with using(backend) as ops:
        loaded = load_model(file, ops, sparsity=sparsity)
        cache = loaded.new_cache()
        got = loaded.forward(cache.batch([(0, TOKEN_IDS, 0)], [is_prompt]), cache)
    assert_close(got, SmallThinker(file).logits(TOKEN_IDS), "native float")


def test_a_token_on_its_own_follows_a_prompt(tmp_path: Path) -> None:
    """The router's input is that of the token wanted, not of the first of the step."""
    file = open_gguf(write_model(tmp_path / "m.gguf", recipe(2, has_window=True)))
    model = load_model(file, ReferenceOps())
    cache = model.new_cache()
    last = np.array([len(TOKEN_IDS) - 2], np.int32)
    first = model.forward(cache.batch([(0, TOKEN_IDS[:-1], 0)], [True]), cache, logits_for=last)
    second = model.forward(cache.batch([(0, TOKEN_IDS[-1:], len(last) + last[0])], [False]), cache)
    expected = SmallThinker(file).logits(TOKEN_IDS)[-2:]
    assert_close(np.concatenate([first, second]), expected, "native float")


def test_the_families_defaults(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", recipe(2, has_window=True)))
    model = load_model(file, ReferenceOps())
    assert model.sparsity == "exact"
    assert [layer.window for layer in model.config.attention] == [None, *[WINDOW] * 3, None]
