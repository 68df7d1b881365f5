"""Ungated ReLU^2 experts, with a shared one and in a latent space, from the file to the logits."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from backends import NATIVE, using
from powerinfer.calibration.linear_inputs import measure_inputs
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, open_gguf
from powerinfer.models import Model, load_model
from powerinfer.models.blocks import Stage
from powerinfer.models.sparsity import layer_source
from powerinfer.ops.backend import AnyBackend
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import FloatArray
from rewritten_models import numbers, rewrite, spec
from tiny_models import write_model
from tolerances import assert_close
from ungated_experts import UNGATED_EXPERTS, let_nemotron_have_experts

TOKEN_IDS = [1, 40, 77, 200, 5, 13, 280]
DoubleArray = npt.NDArray[np.float64]
Stages = dict[tuple[Stage, int], FloatArray]
every_recipe = pytest.mark.parametrize("name", UNGATED_EXPERTS)
without_biases = pytest.mark.parametrize("name", ["plain", "transposed", "single", "latent"])


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    let_nemotron_have_experts(monkeypatch)


def written(folder: Path, name: str) -> GGUFFile:
    return open_gguf(write_model(folder / "m.gguf", UNGATED_EXPERTS[name]))


def run(model: Model) -> FloatArray:
    """Logits of a prompt and of a generated token."""
    cache = model.new_cache()
    prompt = model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)
    decoded = model.forward(cache.batch([(0, [33], len(TOKEN_IDS))], [False]), cache)
    return np.concatenate([prompt, decoded])


def logits_of(file: GGUFFile, sparsity: str | None, ops: AnyBackend | None = None) -> FloatArray:
    return run(load_model(file, ops or ReferenceOps(), sparsity=sparsity))


def stages_of(model: Model) -> Stages:
    seen: Stages = {}

    def observe(stage: Stage, number: int, values: FloatArray) -> None:
        seen[stage, number] = values.copy()

    cache = model.new_cache()
    model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache, observe=observe)
    return seen


def in_f64(file: GGUFFile, name: str) -> DoubleArray:
    """A matrix of the second layer, or those of its experts in any layout, down not transposed."""
    stored = file.tensors
    if f"blk.1.{name}_t.weight" in stored:
        return stored[f"blk.1.{name}_t.weight"].decode().swapaxes(-1, -2).astype(np.float64)
    if f"blk.1.{name}.weight" in stored:
        return stored[f"blk.1.{name}.weight"].decode().astype(np.float64)
    one = name.removesuffix("_exps")
    return np.stack([stored[f"blk.1.{one}.{n}.weight"].decode() for n in range(6)], dtype="f8")


def expert_by_hand(up: DoubleArray, down: DoubleArray, x: DoubleArray) -> DoubleArray:
    hidden: DoubleArray = np.square(np.maximum(up @ x, 0))
    return down @ hidden


def layer_by_hand(file: GGUFFile, x: DoubleArray) -> DoubleArray:
    """What the second layer adds to the residual stream for one token's normalized stream."""
    scores = 1 / (1 + np.exp(-in_f64(file, "ffn_gate_inp") @ x))
    bias = file.tensors["blk.1.exp_probs_b.bias"].decode()
    chosen = np.argsort(-(scores + bias))[:3]
    has_latent = "blk.1.ffn_latent_down.weight" in file.tensors
    seen = in_f64(file, "ffn_latent_down") @ x if has_latent else x
    ups, downs = in_f64(file, "ffn_up_exps"), in_f64(file, "ffn_down_exps")
    weights = 2.5 * scores[chosen] / scores[chosen].sum()
    y = np.zeros(len(seen))
    for weight, expert in zip(weights, chosen, strict=True):
        y += weight * expert_by_hand(ups[expert], downs[expert], seen)
    y = in_f64(file, "ffn_latent_up") @ y if has_latent else y
    if any("_shexp" in stored for stored in file.tensors):
        # It sees what the router sees.
        y += expert_by_hand(in_f64(file, "ffn_up_shexp"), in_f64(file, "ffn_down_shexp"), x)
    return y


@without_biases
def test_layers_are_computed_as_by_hand(name: str, tmp_path: Path) -> None:
    file = written(tmp_path, name)
    seen = stages_of(load_model(file, ReferenceOps()))
    stage = Stage.ROUTER_INPUT if name == "latent" else Stage.FFN_INPUT
    added = seen[Stage.FFN, 1] - seen[Stage.ATTENTION, 1]
    for token, row in enumerate(seen[stage, 1].astype(np.float64)):
        by_hand = layer_by_hand(file, row)
        np.testing.assert_allclose(added[token], by_hand, rtol=1e-4, atol=1e-4)


@every_recipe
@pytest.mark.parametrize("backend", NATIVE)
def test_kernels_agree_with_the_reference(name: str, backend: str, tmp_path: Path) -> None:
    file = written(tmp_path, name)
    for sparsity in ("off", "exact", "oracle"):
        expected = logits_of(file, sparsity)
        with using(backend) as ops:
            assert_close(logits_of(file, sparsity, ops), expected, "native float")


@every_recipe
def test_exact_equals_off_and_skips(name: str, tmp_path: Path) -> None:
    file = written(tmp_path, name)
    off, exact = (load_model(file, ReferenceOps(), sparsity=kind) for kind in ("off", "exact"))
    assert_close(run(exact), run(off), "exact sparse")
    assert exact.ops.counters.active < 0.7 * off.ops.counters.active


@every_recipe
@pytest.mark.parametrize("kind", ["lowbit:3", "sign", "sign+lowbit:2"])
def test_predictors_need_no_calibration(name: str, kind: str, tmp_path: Path) -> None:
    file = written(tmp_path, name)
    model = load_model(file, ReferenceOps(), sparsity=kind)
    expected = logits_of(file, "exact")
    # Cautious thresholds lose little.
    assert np.abs(run(model) - expected).mean() < 0.05 * expected.std()
    counted = model.ops.counters
    assert counted.active < counted.predicted


def test_statistics_implied_by_the_norm_are_projected(tmp_path: Path) -> None:
    file = written(tmp_path, "latent-biases")
    model = load_model(file, ReferenceOps())
    source = layer_source(model, 1, None)
    into, bias = in_f64(file, "ffn_latent_down"), file.tensors["blk.1.ffn_latent_down.bias"]
    weight, mean = (file.tensors[f"blk.1.ffn_norm.{part}"].decode() for part in ("weight", "bias"))
    np.testing.assert_allclose(source.mean, into @ mean + bias.decode(), rtol=1e-4, atol=1e-5)
    variance = into**2 @ np.square(weight.astype(np.float64))
    ratio = source.variance / variance
    assert ratio.shape == (20,)
    assert 0.3 < ratio.min() <= ratio.max() < 3.0
    assert ratio.mean() == pytest.approx(1.0, abs=0.2)


def test_inputs_of_all_matrices_are_measured(tmp_path: Path) -> None:
    file = written(tmp_path, "latent")
    model = load_model(file, ReferenceOps(), sparsity="off")
    found = measure_inputs(model, file.tensors, [TOKEN_IDS])
    matrices = {n for n in file.tensors if n.startswith("blk.") and "norm" not in n}
    expected = {n.replace("_t.", ".") for n in matrices if n.endswith("weight")}
    assert set(found) == expected
    seen = stages_of(model)
    for stage, name in (
        (Stage.ROUTER_INPUT, "ffn_latent_down"),
        (Stage.ROUTER_INPUT, "ffn_up_shexp"),
        (Stage.FFN_OUTPUT, "ffn_latent_up"),
    ):
        squares = np.square(seen[stage, 1].astype(np.float64)).sum(axis=0)
        np.testing.assert_allclose(found[f"blk.1.{name}.weight"].sums[0], squares, rtol=1e-5)


def test_a_token_reads_its_experts_and_all_projections(tmp_path: Path) -> None:
    file = written(tmp_path, "latent")
    model = load_model(file, ReferenceOps(), sparsity="off")

    def size(part: str) -> int:
        return sum(t.num_bytes for t in file.tensors.values() if part in t.name)

    always = size("gate_inp") + size("_shexp")
    assert model.used_ffn_bytes == size("_exps") // 2 + always
    attention = size(".attn") + size(".ffn_norm")
    head = sum(t.num_bytes for name, t in file.tensors.items() if name.startswith("output"))
    row = file.tensors["token_embd.weight"].num_bytes // model.config.vocab_size
    assert model.dense_bytes == attention + size("latent") + head + row


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("ffn_up_exps.weight", r"missing tensors: blk\.1\.ffn_up_exps\.weight$"),
        ("ffn_latent_up.weight", r"missing tensors: blk\.1\.ffn_latent_up\.weight$"),
    ],
)
def test_missing_tensors_are_named(gone: str, message: str, tmp_path: Path) -> None:
    file = rewrite(
        tmp_path,
        UNGATED_EXPERTS["latent"],
        lambda t: None if t.name == f"blk.1.{gone}" else spec(t),
    )
    with pytest.raises(GGUFError, match=message):
        load_model(file, ReferenceOps())


@pytest.mark.parametrize("name", ["plain", "transposed"])
@pytest.mark.parametrize("size", [0, None])
def test_shared_experts_are_never_left_out(name: str, size: int | None, tmp_path: Path) -> None:
    key = {"nemotron.expert_shared_feed_forward_length": size}
    file = rewrite(tmp_path, UNGATED_EXPERTS[name], spec, metadata=key)
    with pytest.raises(GGUFError, match="is 0 or missing, but the file has shared experts"):
        load_model(file, ReferenceOps())


def test_a_latent_size_must_fit_the_tensors(tmp_path: Path) -> None:
    sizes = {"nemotron.moe_latent_size": 16}
    file = rewrite(tmp_path, UNGATED_EXPERTS["latent"], spec, metadata=sizes)
    with pytest.raises(GGUFError, match=r"ffn_latent_down\.weight \[20, 32\], not \[16, 32\]"):
        load_model(file, ReferenceOps())


def test_nan_in_a_projection_reaches_the_logits(tmp_path: Path) -> None:
    def damaged(tensor: Tensor) -> TensorSpec:
        if tensor.name != "blk.0.ffn_latent_down.weight":
            return spec(tensor)
        values = tensor.decode()
        values[3, 4] = np.nan
        return numbers(tensor.name, values)

    file = rewrite(tmp_path, UNGATED_EXPERTS["latent"], damaged)
    assert np.isnan(logits_of(file, "exact")).all()
