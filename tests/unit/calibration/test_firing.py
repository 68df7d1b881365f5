"""`watch_firing`: the bits of every layer are those of an instrumented numpy pass."""

from pathlib import Path

import numpy as np
import pytest

from native_cases import make_ffn, numbers
from powerinfer import LLM
from powerinfer.calibration.ffn_inputs import FFNInputs
from powerinfer.calibration.firing import Bits, FiringLayer, count_fired, unpack, watch_firing
from powerinfer.calibration.ground_truth import neuron_values
from powerinfer.calibration.routing import Routing
from powerinfer.calibration.window_pass import measure_layers, run_windows
from powerinfer.errors import NumericsError
from powerinfer.models import Model
from powerinfer.models.blocks import FiringObserver, Stage
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import Activation, ActivationKind, FloatArray, IntArray
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

ALL = tuple(TINY_MODELS | TINY_EXPERTS)
NUM_WINDOWS, WINDOW = 3, 21


def _path(folder: Path, name: str) -> Path:
    return write_model(folder / f"{name}.gguf", (TINY_MODELS | TINY_EXPERTS)[name])


def _windows(model: Model) -> IntArray:
    random = np.random.default_rng(4)
    shape = NUM_WINDOWS, WINDOW
    return random.integers(3, model.config.vocab_size, shape).astype(np.int32)


def _copied(layer: FiringLayer) -> FiringLayer:
    return FiringLayer(layer.number, np.array(layer.x), np.array(layer.raw), np.array(layer.fired))


def _watched(model: Model, num_layers: int | None = None) -> list[FiringLayer]:
    seen: list[FiringLayer] = []
    watch_firing(
        model, _windows(model), lambda layer: seen.append(_copied(layer)), num_layers=num_layers
    )
    return seen


def _computed_again(model: Model) -> list[FiringLayer]:
    """Gate and up once more, in numpy."""
    found = []

    def measure(number: int, inputs: FFNInputs) -> None:
        ops, ffn = model.ops, model.weights.layers[number].ffn
        marks = np.ones(len(inputs.x), bool)
        routing = Routing.of(ops, ffn, inputs.x, inputs.router, marks)
        _, values = neuron_values(ops, ffn, inputs.x, routing)
        fires = routing.ids(values != 0).mask(routing.num_neurons)
        fired = np.packbits(fires, axis=1, bitorder="little")
        found.append(_copied(FiringLayer(number, inputs.x, inputs.raw, fired)))

    measure_layers(model, _windows(model), measure)
    return found


@pytest.mark.parametrize("kernels", ["reference", None])
@pytest.mark.parametrize("name", ALL)
def test_bits_are_those_of_values_computed_apart(
    tmp_path: Path, name: str, kernels: str | None
) -> None:
    path = _path(tmp_path, name)
    with LLM(path, kernels="reference") as llm:
        is_sparse = llm.loaded.model.config.activation.is_sparse
    with LLM(path, kernels=kernels, sparsity="exact" if is_sparse else "off") as llm:
        model = llm.loaded.model
        seen, expected = _watched(model), _computed_again(model)
    config = model.config
    with_ffn = [number for number in range(config.num_layers) if number not in config.absent.ffns]
    assert [layer.number for layer in seen] == with_ffn
    for got, right in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(got.x, right.x)
        np.testing.assert_array_equal(got.raw, right.raw)
        assert got.fired.shape == right.fired.shape
        differing = np.unpackbits(got.fired ^ right.fired).mean()
        # A token's gates may be computed by pairs, in another order: signs next to zero may turn.
        assert differing == 0 if kernels == "reference" else differing < 1e-3


@pytest.mark.parametrize("name", ["bamboo", "falcon-powerinfer", "mixtral-drelu-predictors"])
def test_the_pass_ends_after_the_last_layer_that_is_wanted(tmp_path: Path, name: str) -> None:
    with LLM(_path(tmp_path, name), sparsity="exact") as llm:
        model = llm.loaded.model
        whole = _watched(model)
        before = model.ops.counters.total
        (first,) = _watched(model, num_layers=1)
        of_one = model.ops.counters.total - before
        assert not _watched(model, num_layers=0)
        _watched(model)
        assert model.ops.counters.total - before == of_one * (1 + model.config.num_layers)
    np.testing.assert_array_equal(first.fired, whole[0].fired)


@pytest.mark.parametrize("name", ["llama-powerinfer", "smallthinker-predictors"])
def test_predictors_are_not_asked(tmp_path: Path, name: str) -> None:
    path, found = _path(tmp_path, name), []
    for sparsity in ("exact", "mlp"):
        with LLM(path, sparsity=sparsity) as llm:
            found.append([layer.fired for layer in _watched(llm.loaded.model)])
    for exact, predicted in zip(*found, strict=True):
        np.testing.assert_array_equal(exact, predicted)


@pytest.mark.parametrize("name", ["bamboo", "falcon-powerinfer", "mixtral-drelu-predictors"])
def test_what_the_pass_computes_does_not_change(tmp_path: Path, name: str) -> None:
    """Inputs of a layer follow from the outputs of those before."""
    with LLM(_path(tmp_path, name), sparsity="exact") as llm:
        model = llm.loaded.model
        plain: list[FloatArray] = []
        measure_layers(model, _windows(model), lambda _, inputs: plain.append(np.array(inputs.x)))
        seen = _watched(model)
    assert len(plain) == model.config.num_layers
    for got, x in zip(seen, plain, strict=True):
        np.testing.assert_array_equal(got.x, x)


def test_damaged_weights_end_the_pass(tmp_path: Path) -> None:
    with LLM(_path(tmp_path, "bamboo"), sparsity="exact") as llm:
        model = llm.loaded.model

        def damage(layer: FiringLayer) -> None:
            layer.raw[0, 0] = np.nan

        with pytest.raises(NumericsError, match="layer 1 holds NaN"):
            watch_firing(model, _windows(model), damage)


def test_counts_are_sums_of_unpacked_bits(tmp_path: Path) -> None:
    with LLM(_path(tmp_path, "bamboo"), sparsity="exact") as llm:
        layer = _watched(llm.loaded.model)[0]
        num_neurons = llm.loaded.model.config.intermediate_size
    counts = np.ones(num_neurons, np.int64)
    count_fired(layer.fired, counts)
    np.testing.assert_array_equal(counts - 1, unpack(layer.fired, num_neurons).sum(axis=0))
    assert 0 < unpack(layer.fired, num_neurons).mean() < 1


@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize(
    "kind", [kind for kind in ActivationKind if kind is not ActivationKind.GELU], ids=str
)
def test_the_reference_notes_values_that_are_not_zero(kind: ActivationKind, is_gated: bool) -> None:
    ops, x = ReferenceOps(), numbers((9, 16), 2)
    activation = Activation(kind, 0.3 if kind is ActivationKind.FATRELU else 0.0)
    ffn = make_ffn(
        ops,
        activation,
        (16, 21),
        is_gated=is_gated,
        is_exact_sparse=activation.is_sparse,
        has_bias=True,
    )
    out, fired = ops.ffn_firing(x, ffn)
    np.testing.assert_array_equal(out, ops.ffn(x, ffn))
    first = ffn.gate if ffn.gate is not None else ffn.up
    assert first.bias is not None
    deciding = x.astype(float) @ first.matrix.values.T.astype(float) + first.bias
    assert ffn.up.bias is not None
    up = x.astype(float) @ ffn.up.matrix.values.T.astype(float) + ffn.up.bias
    fires = np.ones(up.shape, bool)
    if activation.is_sparse:
        fires = deciding >= activation.threshold
    if kind is ActivationKind.DRELU:
        fires &= up > 0
    np.testing.assert_array_equal(unpack(fired, 21) != 0, fires)


def test_stages_are_shown_as_to_every_observer(tmp_path: Path) -> None:
    class Recording(FiringObserver):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def __call__(self, stage: Stage, number: int, x: FloatArray) -> None:
            self.seen.append(f"{stage} {number}")

        def fired(self, number: int, bits: Bits) -> None:
            self.seen.append(f"fired {number}")

    with LLM(_path(tmp_path, "bamboo"), sparsity="exact") as llm:
        model, recording, plain = llm.loaded.model, Recording(), list[str]()
        run_windows(model, _windows(model), recording)
        run_windows(
            model, _windows(model), lambda stage, number, _: plain.append(f"{stage} {number}")
        )
    assert [name for name in recording.seen if not name.startswith("fired")] == plain
    at = recording.seen.index("fired 0")
    assert recording.seen[at - 1 : at + 2 : 2] == ["predictor input 0", "FFN output 0"]
