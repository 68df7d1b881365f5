"""Predictors of experts: what they let pass, and what is damaged.

`fc2_exps` has a matrix for each expert, and so does `fc1_exps`; or all experts share one `fc1`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from backends import BACKENDS, using
from powerinfer.errors import GGUFError, NumericsError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, open_gguf
from powerinfer.models import load_model
from powerinfer.models.blocks import Stage
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import FloatArray
from rewritten_models import numbers, rewrite, spec
from tiny_models import TINY_EXPERTS, TinyModel, write_model

DoubleArray: TypeAlias = npt.NDArray[np.float64]

RECIPE = TINY_EXPERTS["mixtral-drelu-predictors"]
SHARED = TINY_EXPERTS["smallthinker-predictors"]
TOKENS = [1, 40, 70, 90, 100, 261]


def _changed(
    folder: Path,
    name: str,
    change: Callable[[FloatArray], FloatArray],
    recipe: TinyModel = RECIPE,
) -> GGUFFile:
    def change_one(tensor: Tensor) -> TensorSpec:
        return spec(tensor) if tensor.name != name else numbers(name, change(tensor.decode()))

    return rewrite(folder, recipe, change_one)


def _scores(file: GGUFFile, number: int, raw: FloatArray) -> DoubleArray:
    """Scores of the neurons of all experts, whoever is chosen: f64[num_tokens, num_neurons]."""
    fc1 = file.tensors.get(f"blk.{number}.fc1.weight")
    fc2 = file.tensors[f"blk.{number}.fc2_exps.weight"].decode().astype(np.float64)
    if fc1 is None:
        own = file.tensors[f"blk.{number}.fc1_exps.weight"].decode().astype(np.float64)
        hidden = np.maximum(np.einsum("erh,th->ter", own, raw), 0)
    else:
        shared = np.maximum(raw.astype(np.float64) @ fc1.decode().astype(np.float64).T, 0)
        hidden = np.repeat(shared[:, np.newaxis], len(fc2), axis=1)
    scores: DoubleArray = np.einsum("enr,ter->ten", fc2, hidden)
    return scores.reshape(len(raw), -1)


@pytest.mark.parametrize("recipe", [RECIPE, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_expert_asks_its_own_predictor(
    tmp_path: Path, backend: str, recipe: TinyModel
) -> None:
    """All look at the stream after attention, as the predictors of dense Llamas do."""
    file = open_gguf(write_model(tmp_path / "m.gguf", recipe))
    shown: dict[tuple[int, Stage], FloatArray] = {}

    def observe(stage: Stage, number: int, x: FloatArray) -> None:
        shown[number, stage] = x.copy()

    with using(backend) as ops:
        model = load_model(file, ops, sparsity="mlp")
        cache = model.new_cache(len(TOKENS))
        model.forward(cache.batch([(0, TOKENS, 0)], [True]), cache, observe=observe)
        for number, layer in enumerate(model.weights.layers):
            x, raw = shown[number, Stage.FFN_INPUT], shown[number, Stage.PREDICTOR_INPUT]
            np.testing.assert_array_equal(raw, shown[number, Stage.ATTENTION])
            scores = _scores(file, number, raw)
            assert layer.predictor is not None
            mask = layer.predictor.select(ops, layer.ffn, x, raw).mask(scores.shape[1])
            is_sure = np.abs(scores) > 1e-2
            np.testing.assert_array_equal(mask[is_sure], scores[is_sure] >= 0)
            assert 0.2 < mask.mean() < 0.8


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fc1", lambda v: v[:3], r"fc1_exps\.weight.*\[3, 24, 32\]; expected \[4, rank, 32\]"),
        ("fc1", lambda v: v[:, :, :31], r"fc1_exps\.weight.*\[4, 24, 31\].*\[4, rank, 32\]"),
        ("fc1", lambda v: v[0], r"fc1_exps\.weight.*\[24, 32\].*\[4, rank, 32\]"),
        ("fc1", lambda v: v.reshape(-1), r"fc1_exps\.weight.*\[3072\].*\[4, rank, 32\]"),
        ("fc1", lambda v: v[:, :23], r"fc2_exps\.weight.*\[4, 48, 24\].*\[4, 48, 23\].*rank.*23"),
        ("fc2", lambda v: v[:, :47], r"fc2_exps\.weight.*\[4, 47, 24\].*\[4, 48, 24\]"),
        ("fc2", lambda v: v[0], r"fc2_exps\.weight.*\[48, 24\].*\[4, 48, 24\]"),
    ],
)
def test_a_wrong_shape_is_one_error_that_names_the_tensor(
    tmp_path: Path, name: str, change: Callable[[FloatArray], FloatArray], message: str
) -> None:
    file = _changed(tmp_path, f"blk.1.{name}_exps.weight", change)
    for sparsity in ("mlp", "mlp:q8_0"):
        with pytest.raises(GGUFError, match=rf"changed\.gguf: tensor blk\.1\.{message}"):
            load_model(file, ReferenceOps(), sparsity=sparsity)
    assert load_model(file, ReferenceOps()).sparsity == "exact"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fc1", lambda v: v[:, :31], r"fc1\.weight.*\[16, 31\]; expected \[rank, 32\]"),
        ("fc1", lambda v: v.reshape(-1), r"fc1\.weight.*\[512\]; expected \[rank, 32\]"),
        ("fc1", lambda v: v[:15], r"fc2_exps\.weight.*\[5, 48, 16\].*\[5, 48, 15\].*rank.*15"),
        ("fc2_exps", lambda v: v[:4], r"fc2_exps\.weight.*\[4, 48, 16\].*\[5, 48, 16\]"),
    ],
)
def test_a_wrong_shape_of_a_shared_layer_is_named(
    tmp_path: Path, name: str, change: Callable[[FloatArray], FloatArray], message: str
) -> None:
    file = _changed(tmp_path, f"blk.1.{name}.weight", change, SHARED)
    with pytest.raises(GGUFError, match=rf"changed\.gguf: tensor blk\.1\.{message}"):
        load_model(file, ReferenceOps(), sparsity="mlp")


def test_a_missing_predictor_is_named(tmp_path: Path) -> None:
    gone = "blk.1.fc2_exps.weight"
    file = rewrite(tmp_path, RECIPE, lambda tensor: None if tensor.name == gone else spec(tensor))
    with pytest.raises(GGUFError, match=r"blk\.1\.fc2_exps\.weight is missing"):
        load_model(file, ReferenceOps(), sparsity="mlp")


def _damaged(values: FloatArray) -> FloatArray:
    values = values.copy()
    values[2, 1] = np.nan
    return values


@pytest.mark.parametrize(
    ("name", "kind", "row"),
    [
        ("fc2_exps", "mlp:q8_0", 2 * 48 + 1),
        ("ffn_gate_exps", "lowbit:2", 2 * 48 + 1),
        ("ffn_up_exps", "sign", 2 * 48 + 1),
    ],
)
def test_weights_that_cannot_be_copied_are_placed(
    tmp_path: Path, name: str, kind: str, row: int
) -> None:
    file = _changed(tmp_path, f"blk.1.{name}.weight", _damaged)
    with pytest.raises(NumericsError, match=rf"blk\.1\.{name}\.weight: row {row} "):
        load_model(file, NativeOps(threads=1), sparsity=kind)
