"""What PowerInfer's stored predictors mean, against an oracle of one token (one_token.py).

Raw scores without a sigmoid, active at or above the threshold; the input is the un-normalised
residual or, for falcon, the layer's input; inactive neurons add nothing, whatever their bias.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import BACKENDS, using
from one_token import INPUTS, OneToken, one_token
from powerinfer import LLM
from powerinfer.errors import GGUFError, NumericsError
from powerinfer.gguf import GGUFFile, TensorSpec, encode_tensor, open_gguf, write_gguf
from powerinfer.models import Model, load_model, with_predictors
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.predictors import LayerChoice
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model
from tolerances import assert_close

MODELS = [name for name, model in TINY_MODELS.items() if model.magic == "PWRI"]
TOKEN_IDS = [77, 5, 201, 33, 150, 260, 8, 119]
"""Each a sequence of its own."""

THRESHOLD = "powerinfer.sparse_threshold"

Change = Callable[[str, FloatArray], FloatArray | None]

backends = pytest.mark.parametrize("backend", BACKENDS)
models = pytest.mark.parametrize("name", MODELS)


def changed(
    folder: Path,
    name: str,
    metadata: Mapping[str, Any] | None = None,
    change: Change = lambda _, values: values,
) -> GGUFFile:
    """A tiny model with keys added and tensors changed (None leaves one out)."""
    file = open_gguf(write_model(folder / "plain.gguf", TINY_MODELS[name]))
    tensors: list[TensorSpec] = []
    for tensor in file.tensors.values():
        values = change(tensor.name, tensor.decode())
        if values is not None:
            tensors.append(encode_tensor(tensor.name, values))
    path = folder / "changed.gguf"
    write_gguf(path, {**file.metadata, **(metadata or {})}, tensors, magic=file.magic)
    return open_gguf(path)


def logits_of(model: Model) -> FloatArray:
    """Logits of every token alone: f32[len(TOKEN_IDS), vocab_size]."""
    cache = model.new_cache(64 * len(TOKEN_IDS))
    return model.forward(
        cache.batch([(i, [id_], 0) for i, id_ in enumerate(TOKEN_IDS)], [False] * len(TOKEN_IDS)),
        cache,
    )


def oracle(file: GGUFFile, threshold: float, predictor_input: str | None = None) -> OneToken:
    """The same from the oracle, of all tokens together."""
    ran = [one_token(file, token_id, threshold, predictor_input) for token_id in TOKEN_IDS]
    return OneToken(
        np.concatenate([one.logits for one in ran]),
        min(one.margin for one in ran),
        float(np.mean([one.active_share for one in ran])),
    )


def test_every_family_of_powerinfer_is_here() -> None:
    assert {TINY_MODELS[name].architecture for name in MODELS} == set(INPUTS)


@backends
@models
@pytest.mark.parametrize("threshold", [None, 0.25, -0.125], ids=str)
def test_predicted_neurons_are_the_oracles(
    name: str, threshold: float | None, backend: str, tmp_path: Path
) -> None:
    """The file's own predictor, by default; its key decides, and 0 where there is none."""
    file = changed(tmp_path, name, {} if threshold is None else {THRESHOLD: threshold})
    expected = oracle(file, threshold or 0.0)
    assert expected.margin > 1e-5, "choose other tokens: rounding could turn a score"
    assert 0.02 < expected.active_share < 0.98
    with using(backend) as ops:
        model = load_model(file, ops)
        assert model.sparsity == "mlp"
        got = logits_of(model)
    assert_close(got, expected.logits, "native float")


@models
@pytest.mark.parametrize("predictor_input", ["residual", "layer input", "FFN input"])
def test_another_input_gives_other_logits(name: str, predictor_input: str, tmp_path: Path) -> None:
    """Otherwise the test above would not show which input is used."""
    file = changed(tmp_path, name)
    right, other = oracle(file, 0.0), oracle(file, 0.0, predictor_input)
    is_right = predictor_input == INPUTS[TINY_MODELS[name].architecture]
    distance = np.abs(right.logits - other.logits).max() / right.logits.std()
    assert distance == 0.0 if is_right else distance > 0.1


@backends
@models
def test_a_threshold_below_all_scores_is_dense(name: str, backend: str, tmp_path: Path) -> None:
    """In the file (whose numbers are finite), or chosen: minus infinity."""
    file = changed(tmp_path, name, {THRESHOLD: -3e38})
    with using(backend) as ops:
        dense = logits_of(load_model(file, ops, sparsity="off"))
        model = load_model(file, ops)
        assert_close(logits_of(model), dense, "exact sparse")
        choices = [LayerChoice("mlp", (-np.inf,))] * model.config.num_layers
        model = with_predictors(model, choices, name="mlp")
        assert_close(logits_of(model), dense, "exact sparse")


@backends
@models
@pytest.mark.parametrize(("threshold", "share"), [(0.0, 1.0), (1e-30, 0.0)])
def test_a_score_at_the_threshold_is_active(
    name: str, threshold: float, share: float, backend: str, tmp_path: Path
) -> None:
    """With fc1 = 0 all scores are exactly 0: all neurons run, or none.

    With none, an OPT neuron's relu(bias) must not leak, and the bias of down must stay.
    """
    file = changed(
        tmp_path,
        name,
        {THRESHOLD: threshold},
        lambda n, v: v * 0 if n.endswith("fc1.weight") else v,
    )
    expected = oracle(file, threshold)
    assert expected.active_share == share
    with using(backend) as ops:
        model = load_model(file, ops)
        got = logits_of(model)
        neurons = len(TOKEN_IDS) * model.config.num_layers * model.config.intermediate_size
        assert ops.counters.predicted == share * neurons
    assert_close(got, expected.logits, "native float")


@backends
def test_a_plain_down_gives_the_same(backend: str, tmp_path: Path) -> None:
    """Predictors work on neurons that are columns of `ffn_down`, too."""
    file = open_gguf(write_model(tmp_path / "t.gguf", TINY_MODELS["opt-powerinfer"]))
    tensors = []
    for tensor in file.tensors.values():
        values = tensor.decode()
        is_down = tensor.name.endswith("ffn_down_t.weight")
        name = tensor.name.replace("ffn_down_t", "ffn_down")
        tensors.append(encode_tensor(name, np.ascontiguousarray(values.T) if is_down else values))
    write_gguf(tmp_path / "p.gguf", file.metadata, tensors, magic="PWRI")
    with using(backend) as ops:
        plain = logits_of(load_model(open_gguf(tmp_path / "p.gguf"), ops))
    assert_close(plain, oracle(file, 0.0).logits, "native float")


def test_ranks_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    file = changed(tmp_path, "opt-powerinfer")
    weights = load_model(file, ReferenceOps()).weights
    assert [fc1.shape[0] for fc1, _ in weights.mlp.values()] == [16, 24]


def without(*names: str) -> Change:
    return lambda name, values: None if name in names else values


def cut(cut_name: str, *shape: int) -> Change:
    return lambda name, values: values[: shape[0], : shape[1]] if name == cut_name else values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut("blk.1.fc1.weight", 24, 31), r"blk\.1\.fc1\.weight.*\[24, 31\].*\[rank, 32\]"),
        (cut("blk.1.fc1.weight", 23, 32), r"blk\.1\.fc2\.weight.*\[48, 24\].*\[48, 23\]"),
        (cut("blk.0.fc2.weight", 47, 16), r"blk\.0\.fc2\.weight.*\[47, 16\].*\[48, 16\]"),
        (without("blk.1.fc2.weight"), r"blk\.1\.fc2\.weight is missing"),
        (without("blk.0.fc1.weight", "blk.0.fc2.weight"), r"blk\.0\.fc1\.weight is missing"),
        (
            lambda name, values: values.reshape(-1) if name == "blk.0.fc1.weight" else values,
            r"blk\.0\.fc1\.weight.*\[512\]",
        ),
    ],
)
def test_a_bad_predictor_is_one_error_that_names_it(
    change: Change, message: str, tmp_path: Path
) -> None:
    file = changed(tmp_path, "opt-powerinfer", change=change)
    for sparsity in (None, "mlp", "mlp:q8_0"):
        with pytest.raises(GGUFError, match=message):
            load_model(file, ReferenceOps(), sparsity=sparsity)


@pytest.mark.parametrize("sparsity", ["exact", "off", "lowbit:2", "sign"])
def test_a_bad_predictor_stops_nothing_else(
    sparsity: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = without("blk.1.fc2.weight")
    file = changed(tmp_path, "opt-powerinfer", change=gone)
    whole = open_gguf(write_model(tmp_path / "whole.gguf", TINY_MODELS["opt-powerinfer"]))
    got = logits_of(load_model(file, ReferenceOps(), sparsity=sparsity))
    expected = logits_of(load_model(whole, ReferenceOps(), sparsity=sparsity))
    np.testing.assert_array_equal(got, expected)
    with LLM(file.path, sparsity=sparsity, kernels="reference") as llm:
        assert llm.loaded.model.layer_kinds == (sparsity,) * 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "blk.1.fc2.weight is missing" in said[0]
    assert "predictors are not used" in said[0]


@pytest.mark.parametrize("kind", ["mlp:q8_0", "mlp:q4_0"])
def test_numbers_that_cannot_be_copied_are_placed(kind: str, tmp_path: Path) -> None:
    file = changed(
        tmp_path,
        "opt-powerinfer",
        change=lambda name, values: values * np.nan if name == "blk.1.fc2.weight" else values,
    )
    with pytest.raises(NumericsError, match=r"blk\.1\.fc2\.weight: row 0 "):
        load_model(file, NativeOps(threads=1), sparsity=kind)


@pytest.mark.parametrize("name", ["ffn_gate", "ffn_up"])
def test_weights_that_cannot_be_copied_are_placed(name: str, tmp_path: Path) -> None:
    broken = f"blk.1.{name}.weight"
    file = changed(
        tmp_path,
        "bamboo",
        change=lambda tensor, values: values * np.nan if tensor == broken else values,
    )
    with pytest.raises(NumericsError, match=rf"blk\.1\.{name}\.weight: row 0 "):
        load_model(file, NativeOps(threads=1), sparsity="lowbit:2")


@pytest.mark.parametrize("value", [float("nan"), "high"])
def test_a_bad_threshold_is_named(value: float | str, tmp_path: Path) -> None:
    file = changed(tmp_path, "llama-powerinfer", {THRESHOLD: value})
    with pytest.raises(GGUFError, match=r"changed\.gguf.*powerinfer\.sparse_threshold"):
        load_model(file, ReferenceOps())


def test_a_file_without_predictors_runs_exact(tmp_path: Path) -> None:
    gone = without(*(f"blk.{n}.fc{i}.weight" for n in (0, 1) for i in (1, 2)))
    file = changed(tmp_path, "opt-powerinfer", change=gone)
    assert load_model(file, ReferenceOps()).sparsity == "exact"
