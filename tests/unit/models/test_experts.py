"""Models with experts: layouts, checks, shared experts, and what a step costs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, open_gguf
from powerinfer.models import Model, load_model
from powerinfer.models.blocks import Stage
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import FloatArray
from rewritten_models import numbers, rewrite, rewrite_all, spec
from tiny_models import TINY_EXPERTS, TinyModel, wide, write_model
from tolerances import assert_close

TOKEN_IDS = [1, 40, 77, 200, 5, 13, 280]
MIXTRAL = TINY_EXPERTS["mixtral"]


def logits_of(file: GGUFFile, sparsity: str | None = None) -> FloatArray:
    return run(load_model(file, ReferenceOps(), sparsity=sparsity))


def run(model: Model) -> FloatArray:
    cache = model.new_cache()
    return model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)


@pytest.mark.parametrize("name", TINY_EXPERTS)
def test_every_tiny_model_with_experts_runs(name: str, tmp_path: Path) -> None:
    logits = logits_of(open_gguf(write_model(tmp_path / "m.gguf", TINY_EXPERTS[name])))
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1


def test_a_mixtral_is_what_it_was_written_to_be(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", MIXTRAL))
    model = load_model(file, ReferenceOps())
    ffn = model.weights.layers[1].ffn
    assert ffn.router is not None
    assert (ffn.num_experts, ffn.router.num_used, ffn.router.is_normalized) == (4, 2, True)
    assert model.ops.matrix_shape(ffn.up.matrix) == (4 * 48, 32)
    assert model.ops.matrix_shape(ffn.down.matrix) == (4 * 32, 48)


def single(tensor: Tensor) -> Sequence[TensorSpec]:
    """The oldest layout: a tensor per expert."""
    if "_exps" not in tensor.name:
        return (spec(tensor),)
    block, _, name = tensor.name.rpartition(".ffn_")
    name = name.removesuffix("_exps.weight")
    parts = np.split(tensor.data, tensor.shape[0])
    return [
        (f"{block}.ffn_{name}.{number}.weight", tensor.shape[1:], tensor.format, part)
        for number, part in enumerate(parts)
    ]


@pytest.mark.parametrize("format_name", ["f32", "q4_0", "q8_0", "q4_k"])
def test_single_tensors_are_the_same_model(format_name: str, tmp_path: Path) -> None:
    model = wide(MIXTRAL, format_name) if format_name == "q4_k" else MIXTRAL
    model = replace(model, intermediate_size=256 if format_name == "q4_k" else 64)
    model = replace(model, format=format_name)
    file = rewrite_all(tmp_path, model, single)
    assert "blk.0.ffn_up.3.weight" in file.tensors
    np.testing.assert_array_equal(logits_of(file), logits_of(open_gguf(tmp_path / "plain.gguf")))


@pytest.mark.parametrize("has_biases", [False, True])
def test_gate_and_up_in_one_tensor_are_the_same_model(has_biases: bool, tmp_path: Path) -> None:
    def taken_apart(tensor: Tensor) -> Sequence[TensorSpec]:
        if "ffn_gate_up_exps" not in tensor.name:
            return (spec(tensor),)
        halves = np.split(tensor.decode(), 2, axis=1)
        names = [tensor.name.replace("gate_up", name) for name in ("gate", "up")]
        return [numbers(name, half) for name, half in zip(names, halves, strict=True)]

    model = replace(TINY_EXPERTS["mixtral-fused"], has_linear_biases=has_biases)
    file = rewrite_all(tmp_path, model, taken_apart)
    assert "blk.0.ffn_gate_exps.weight" in file.tensors
    np.testing.assert_array_equal(logits_of(file), logits_of(open_gguf(tmp_path / "plain.gguf")))


@pytest.mark.parametrize("name", ["mixtral-relu-biases", "mixtral-drelu-transposed"])
def test_transposed_down_is_the_same_model_and_exact_is_off(name: str, tmp_path: Path) -> None:
    def turned(tensor: Tensor) -> TensorSpec:
        if "ffn_down_exps" not in tensor.name:
            return spec(tensor)
        here, there = (
            ("_exps_t.", "_exps.") if "_exps_t." in tensor.name else ("_exps.", "_exps_t.")
        )
        values = tensor.decode()
        if tensor.name.endswith("weight"):
            values = values.transpose(0, 2, 1)
        return numbers(tensor.name.replace(here, there), values)

    file = rewrite(tmp_path, TINY_EXPERTS[name], turned)
    expected = logits_of(open_gguf(tmp_path / "plain.gguf"))
    assert_close(logits_of(file), expected, "exact sparse")
    assert_close(logits_of(file, "off"), expected, "exact sparse")


def test_a_router_must_be_finite(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf):

        def damaged(tensor: Tensor, bad: float = bad) -> TensorSpec:
            if tensor.name != "blk.1.ffn_gate_inp.weight":
                return spec(tensor)
            values = tensor.decode()
            values[2, 3] = bad
            return numbers(tensor.name, values)

        file = rewrite(tmp_path, MIXTRAL, damaged)
        with pytest.raises(GGUFError, match=r"changed\.gguf.*blk\.1\.ffn_gate_inp\.weight.*NaN"):
            load_model(file, ReferenceOps())


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            MIXTRAL,
            {"llama.expert_count": 5},
            r"blk\.0\.ffn_gate_inp\.weight \[4, 32\], not \[5, 32\]",
        ),
        (
            MIXTRAL,
            {"llama.expert_count": 3},
            r"ffn_up_exps\.weight \[4, 48, 32\], not \[3, 48, 32\]",
        ),
        (
            TINY_EXPERTS["mixtral-single"],
            {"llama.expert_count": 3},
            r"blk\.1\.ffn_down\.3\.weight \[32, 48\], but there are 3 experts",
        ),
        (
            TINY_EXPERTS["mixtral-single"],
            {"llama.expert_count": 5},
            r"missing tensors: blk\.0\.ffn_gate\.4\.weight, blk\.0\.ffn_up\.4\.weight",
        ),
        (MIXTRAL, {"llama.expert_count": None}, r"missing tensors: blk\.0\.ffn_gate\.weight"),
        (
            TinyModel("llama"),
            {"llama.expert_count": 4, "llama.expert_used_count": 2},
            r"missing tensors: blk\.0\.ffn_gate_inp\.weight, blk\.0\.ffn_gate_exps\.weight",
        ),
    ],
)
def test_counts_that_disagree_with_tensors_are_named(
    model: TinyModel, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    file = rewrite(tmp_path, model, spec, metadata=changes)
    with pytest.raises(GGUFError, match=message):
        load_model(file, ReferenceOps())


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    gone = "blk.1.ffn_down.2.weight"
    file = rewrite(
        tmp_path, TINY_EXPERTS["mixtral-single"], lambda t: None if t.name == gone else spec(t)
    )
    with pytest.raises(GGUFError, match=rf"missing tensors: {gone}$"):
        load_model(file, ReferenceOps())


def test_bytes_of_a_token_are_those_of_its_experts(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", MIXTRAL))
    model = load_model(file, ReferenceOps())
    experts = sum(t.num_bytes for t in file.tensors.values() if "_exps" in t.name)
    routers = sum(t.num_bytes for t in file.tensors.values() if "gate_inp" in t.name)
    assert model.ffn_bytes == experts + routers
    assert model.used_ffn_bytes == experts // 2 + routers
    before = model.bytes_per_token(1)
    assert before - model.bytes_per_token(1, ffn_bytes=0) == model.used_ffn_bytes
    cache = model.new_cache()
    model.forward(cache.batch([(0, TOKEN_IDS[:1], 0)], [False]), cache)
    assert model.ops.counters.bytes_read == model.used_ffn_bytes


def test_layers_are_computed_as_by_hand(tmp_path: Path) -> None:
    """What a mixture adds to the residual stream, from the file's own tensors."""
    file = open_gguf(write_model(tmp_path / "m.gguf", MIXTRAL))
    model = load_model(file, ReferenceOps())
    seen: dict[tuple[Stage, int], FloatArray] = {}

    def observe(stage: Stage, number: int, values: FloatArray) -> None:
        seen[stage, number] = values.copy()

    cache = model.new_cache()
    model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache, observe=observe)
    values = {
        name: file.tensors[f"blk.1.{name}.weight"].decode()
        for name in ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    }
    x = seen[Stage.FFN_INPUT, 1].astype(np.float64)
    for token, row in enumerate(x):
        logits = values["ffn_gate_inp"] @ row
        chosen = np.argsort(-logits)[:2]
        weights = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
        y = np.zeros(32)
        for weight, expert in zip(weights, chosen, strict=True):
            gate, up = values["ffn_gate_exps"][expert] @ row, values["ffn_up_exps"][expert] @ row
            y += weight * (values["ffn_down_exps"][expert] @ (gate / (1 + np.exp(-gate)) * up))
        np.testing.assert_allclose(seen[Stage.FFN_OUTPUT, 1][token], y, rtol=1e-4, atol=1e-5)
