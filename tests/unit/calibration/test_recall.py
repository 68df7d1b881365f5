"""What `RecallMeter` adds up, against the definitions computed from the weights."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from powerinfer import LLM, LayerRecall, SamplingParams
from powerinfer.calibration.recall import RecallMeter, recall_meter, with_recall_meter
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.models.blocks import Stage, StepControl
from powerinfer.models.metrics import NeuronTally
from powerinfer.ops.operands import RouterRule
from powerinfer.ops.reference.ffn import ReferenceFFN, activate
from powerinfer.ops.reference.matrix import DoubleArray, ReferenceLinear, product
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import BoolArray, FloatArray
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

TOKENS = [1, 40, 70, 90, 100, 261, 262, 263]
RECIPES = TINY_MODELS | TINY_EXPERTS
EXPERTS = ("mixtral-drelu-predictors", "mixtral-relu-biases", "smallthinker-predictors")


def _model(folder: Path, name: str, sparsity: str) -> Model:
    path = write_model(folder / f"{name}.gguf", RECIPES[name])
    return load_model(open_gguf(path), ReferenceOps(), sparsity=sparsity)


def _run(model: Model) -> None:
    """One prefill, then one token: both count."""
    cache = model.new_cache(len(TOKENS))
    model.forward(cache.batch([(0, TOKENS[:-1], 0)], [True]), cache)
    model.forward(cache.batch([(0, TOKENS[-1:], len(TOKENS) - 1)], [False]), cache)


def _watched(model: Model) -> RecallMeter:
    watched = with_recall_meter(model)
    _run(watched)
    meter = recall_meter(watched)
    assert meter is not None
    return meter


@pytest.mark.parametrize(
    ("name", "sparsity"),
    [
        *itertools.product(
            ["bamboo", "llama-powerinfer", "opt-powerinfer", "arcee", *EXPERTS], ["exact", "off"]
        ),
        ("mixtral", "off"),
    ],
)
def test_without_a_predictor_nothing_is_lost(tmp_path: Path, name: str, sparsity: str) -> None:
    meter = _watched(_model(tmp_path, name, sparsity))
    num_used = RECIPES[name].num_used_experts if RECIPES[name].num_experts else 1
    assert meter.has_experts == (num_used > 1)
    for layer in meter.layers:
        assert layer.kind == sparsity
        assert layer.recall == 1.0
        assert layer.ffn_error == 0.0
        assert layer.predicted_share == 1.0
        assert layer.precision == layer.firing_share
        assert layer.total == len(TOKENS) * num_used * 48


@pytest.mark.parametrize(
    "name",
    ["bamboo", "falcon-powerinfer", "opt-powerinfer", EXPERTS[0], EXPERTS[2]],
)
@pytest.mark.parametrize("sparsity", ["mlp", "sign", "lowbit:2", "oracle"])
def test_sums_are_those_of_the_definition(tmp_path: Path, name: str, sparsity: str) -> None:
    """The same figures from the weights and from what each layer was given."""
    model = _model(tmp_path, name, sparsity)
    shown: dict[tuple[int, Stage], list[FloatArray]] = defaultdict(list)

    def observe(stage: Stage, layer: int, x: FloatArray) -> None:
        shown[layer, stage].append(x.copy())

    _run(replace(model, observer=observe))
    meter = _watched(model)
    for number, sums in enumerate(meter.layers):
        # The model was loaded on the reference, so its handles are the reference's.
        ffn = cast("ReferenceFFN", model.weights.layers[number].ffn)
        predictor = model.weights.layers[number].predictor
        assert predictor is not None
        firing = passing = found = 0
        lost = output = 0.0
        stages = Stage.FFN_INPUT, Stage.PREDICTOR_INPUT, Stage.ROUTER_INPUT
        x_of_steps, raw_of_steps, seen_of_steps = (shown[number, stage] for stage in stages)
        inputs = x_of_steps, raw_of_steps, seen_of_steps or x_of_steps
        for x, raw, seen in zip(*inputs, strict=True):
            gate = None if ffn.gate is None else product(x, ffn.gate)
            hidden = activate(ffn.activation, gate, product(x, ffn.up)) * _weights(ffn, seen)
            predictor_input = x if predictor.input == "ffn_input" else raw
            if predictor.active_ids is not None:
                active = predictor.active_ids(predictor_input, None)
            else:
                assert ffn.predictor is not None
                active = ReferenceOps().predict(predictor_input, ffn.predictor)
            passes = np.zeros(hidden.shape, bool)
            for token in range(len(x)):
                passes[token, active.of(token)] = True
            passes &= _weights(ffn, seen) != 0
            firing += int((hidden != 0).sum())
            passing += int(passes.sum())
            found += int((passes & (hidden != 0)).sum())
            down = ffn.down.matrix.values.astype(np.float64)
            bias = 0.0 if ffn.down.bias is None else ffn.down.bias
            output += float(((hidden @ down + bias) ** 2).sum())
            lost += float((((hidden * ~passes) @ down) ** 2).sum())
        assert sums.kind == sparsity
        assert (sums.firing, sums.predicted, sums.found) == (firing, passing, found)
        assert sums.recall == found / firing
        assert sums.precision == found / passing
        assert sums.ffn_error == pytest.approx(np.sqrt(lost / output), abs=1e-6)


def _weights(ffn: ReferenceFFN, seen: FloatArray) -> DoubleArray:
    """What the value of each neuron is multiplied with: 0 in experts that are not chosen."""
    router, num_neurons = ffn.router, len(ffn.up.matrix.values)
    if router is None:
        return np.ones((len(seen), num_neurons))
    weights = np.zeros((len(seen), router.num_experts))
    for row, logits in zip(weights, product(seen, router.linear), strict=True):
        chosen = np.argsort(-logits, kind="stable")[: router.num_used]
        powers = np.exp(logits[chosen])
        row[chosen] = powers if router.rule is RouterRule.SOFTMAX else powers / (1 + powers)
        row /= row.sum()
    return np.repeat(weights, num_neurons // router.num_experts, axis=1)


@pytest.mark.parametrize("name", ["bamboo", "falcon-powerinfer", "opt-powerinfer"])
def test_an_observer_may_end_the_step(tmp_path: Path, name: str) -> None:
    model = _model(tmp_path, name, "exact")
    stages: list[tuple[int, Stage]] = []

    def observe(stage: Stage, layer: int, _x: FloatArray) -> StepControl | None:
        stages.append((layer, stage))
        return StepControl.STOP if stage is Stage.FFN else None

    cache = model.new_cache(len(TOKENS))
    logits = model.forward(cache.batch([(0, TOKENS, 0)], [True]), cache, observe=observe)
    assert logits.shape == (0, model.config.vocab_size)
    own = {Stage.ROUTER_INPUT, Stage.SHARED_INPUT, Stage.PER_LAYER_INPUT, Stage.PER_LAYER_MIX}
    assert set(stages) == {(0, stage) for stage in Stage if stage not in own}
    assert stages[-1] == (0, Stage.FFN)


def test_only_the_oracle_is_perfect(tmp_path: Path) -> None:
    oracle = _watched(_model(tmp_path, "bamboo", "oracle"))
    assert [layer.recall for layer in oracle.layers] == [1.0, 1.0]
    assert [layer.precision for layer in oracle.layers] == [1.0, 1.0]
    mlp = _watched(_model(tmp_path, "bamboo", "mlp"))
    assert all((layer.recall or 1) < 1 for layer in mlp.layers)
    assert all((layer.ffn_error or 0) > 0.01 for layer in mlp.layers)


def test_all_products_of_a_prompt_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that find what fires: decoding's round otherwise."""
    model = _model(tmp_path, "bamboo", "oracle")
    marks: list[BoolArray | None] = []
    compute = ReferenceOps.linear

    def linear(
        ops: ReferenceOps,
        x: FloatArray,
        linears: Sequence[ReferenceLinear],
        is_prompt: BoolArray | None = None,
    ) -> list[FloatArray]:
        marks.append(is_prompt)
        return compute(ops, x, linears, is_prompt)

    monkeypatch.setattr(ReferenceOps, "linear", linear)
    cache = model.new_cache(len(TOKENS))
    with_recall_meter(model).forward(cache.batch([(0, TOKENS, 0)], [True]), cache)
    # Per layer: two in attention, the predictor's, the truth, what is predicted; and the head.
    assert len(marks) == 2 * 5 + 1
    assert all(each is not None and each.all() for each in marks)


@pytest.mark.parametrize("name", ["bamboo", "mixtral-drelu-predictors"])
@pytest.mark.parametrize("sparsity", ["off", "exact", "mlp", "oracle"])
def test_watching_changes_neither_logits_nor_counts(
    tmp_path: Path, name: str, sparsity: str
) -> None:
    model = _model(tmp_path, name, sparsity)
    logits, counted = [], []
    for watched in (model, with_recall_meter(model)):
        tally = NeuronTally(watched)
        cache = watched.new_cache(len(TOKENS))
        with tally.counting():
            logits.append(watched.forward(cache.batch([(0, TOKENS, 0)], [True]), cache))
        counted.append((tally.active, tally.predicted, tally.total, tally.bytes_read))
    np.testing.assert_array_equal(logits[0], logits[1])
    assert counted[0] == counted[1]
    # Of experts those that are chosen.
    assert counted[0][2] == 2 * len(TOKENS) * 48 * (1 if name == "bamboo" else 2)
    assert (counted[0][1] is None) == (sparsity in ("off", "exact"))


def test_programs_read_what_was_measured(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["bamboo"])
    with LLM(path, sparsity="sign", measure_recall=True) as llm:
        assert llm.loaded.recall is not None
        assert [layer.recall for layer in llm.loaded.recall] == [None, None]
        llm.generate("the fox", SamplingParams(max_tokens=2, ignore_eos=True))
        first = llm.loaded.recall
        assert first is not None
        assert all(isinstance(layer, LayerRecall) for layer in first)
        assert [layer.kind for layer in first] == ["sign", "sign"]
        assert all(0 < (layer.recall or 0) <= 1 and layer.firing for layer in first)
        firing = [layer.firing for layer in first]
        llm.generate("a hen", SamplingParams(max_tokens=2, ignore_eos=True))
        second = llm.loaded.recall or ()
        assert [layer.firing for layer in first] == firing
        assert all(after.firing > before for after, before in zip(second, firing, strict=True))
    with LLM(path, sparsity="sign") as llm:
        assert llm.loaded.recall is None


def test_a_meter_starts_again(tmp_path: Path) -> None:
    meter = _watched(_model(tmp_path, "bamboo", "mlp"))
    meter.reset()
    assert [layer.recall for layer in meter.layers] == [None, None]
    assert [layer.ffn_error for layer in meter.layers] == [None, None]
