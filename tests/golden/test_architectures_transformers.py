"""Logits of every architecture against transformers, on tiny seeded random configurations.

transformers' logits are stored, so the comparison runs without torch; where torch is installed,
transformers is run again and must still give them.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from backends import BACKENDS, using
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.models.architecture import architecture_names, get_architecture, no_state
from powerinfer.ops.reference.ops import ReferenceOps
from tolerances import assert_close
from transformers_cases import CASES, FOLDER, POSITIONS, TOKEN_IDS
from transformers_weights import run_transformers, save

SPARSITIES = [
    (name, sparsity)
    for name, case in CASES.items()
    for sparsity in (("off", "exact") if case.is_sparse else ("off",))
]


WITH_STATE = [
    name
    for name, case in CASES.items()
    if get_architecture(case.architecture).state_mixers is not no_state
]


@pytest.fixture(scope="module")
def goldens() -> dict[str, npt.NDArray[np.float32]]:
    with np.load(FOLDER / "logits.npz") as file:
        return dict(file)


def test_every_architecture_has_a_case() -> None:
    # transformers has no SmallThinker: test_smallthinker.py.
    tested = {case.architecture for case in CASES.values()} | {"smallthinker"}
    assert tested == set(architecture_names())


@pytest.mark.needs("torch", "transformers")
@pytest.mark.parametrize("name", CASES)
def test_stored_logits_are_what_transformers_gives(
    name: str, goldens: dict[str, npt.NDArray[np.float32]]
) -> None:
    logits = run_transformers(CASES[name])[CASES[name].positions]
    np.testing.assert_allclose(goldens[name], logits, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "decode"])
@pytest.mark.parametrize("is_down_transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize(("name", "sparsity"), SPARSITIES)
def test_logits_equal_transformers(
    name: str,
    sparsity: str,
    backend: str,
    goldens: dict[str, npt.NDArray[np.float32]],
    tmp_path: Path,
    *,
    is_down_transposed: bool,
    is_prompt: bool,
) -> None:
    case = CASES[name]
    path = save(tmp_path / "m.gguf", case, is_down_transposed=is_down_transposed)
    with using(backend) as ops:
        model = load_model(open_gguf(path), ops, sparsity=sparsity)
        cache = model.new_cache()
        got = model.forward(cache.batch([(0, case.token_ids, 0)], [is_prompt]), cache)
    got = got[case.positions]
    assert_close(got, goldens[name], "transformers")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WITH_STATE)
def test_decoding_after_a_prompt_equals_transformers(
    name: str, backend: str, goldens: dict[str, npt.NDArray[np.float32]], tmp_path: Path
) -> None:
    """A state is handed on from step to step, and from part to part of a prompt."""
    case = CASES[name]
    cuts = [0, case.num_tokens // 4, case.num_tokens // 2]
    cuts += range(max(cuts[-1], case.num_tokens - 10) + 1, case.num_tokens + 1)
    with using(backend) as ops:
        model = load_model(open_gguf(save(tmp_path / "m.gguf", case)), ops)
        cache, rows = model.new_cache(), []
        for number, (first, end) in enumerate(pairwise(cuts)):
            part = case.token_ids[first:end]
            if part:
                rows.append(model.forward(cache.batch([(0, part, first)], [number < 2]), cache))
    assert_close(np.concatenate(rows)[case.positions], goldens[name], "transformers")


def test_activation_option_overrides_a_plain_file(
    goldens: dict[str, npt.NDArray[np.float32]], tmp_path: Path
) -> None:
    """A ReLU model from llama.cpp's converter carries no key: the option must make it right."""
    path = save(tmp_path / "model.gguf", CASES["llama-gqa"])
    expected = goldens["llama-relu"]
    for activation, is_right in (("relu", True), (None, False)):
        model = load_model(open_gguf(path), ReferenceOps(), activation=activation)
        cache = model.new_cache()
        got = model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)[POSITIONS]
        assert (np.abs(got - expected).max() < 0.01) == is_right
