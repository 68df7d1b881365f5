"""One contract for every file in predictors/kinds, on every backend: ids, extremes, equalities."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends import BACKENDS, NATIVE, using
from powerinfer.errors import PowerInferError, UnsupportedError
from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.models import Model, load_model, uniform, with_predictors
from powerinfer.models.sparsity import layer_source
from powerinfer.ops.backend import Backend
from powerinfer.ops.protocol import ActiveIds
from powerinfer.predictors import LayerChoice, PredictorInput, build_predictor, kind_names
from powerinfer.values import FloatArray
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model
from tolerances import assert_close

# A sparse model of each FFN shape: dReLU with predictors, gated ReLU, ungated with biases; and
# experts with predictors, and with biases.
DENSE = ("bamboo", "llama-relu", "opt-powerinfer")
EXPERTS = ("mixtral-drelu-predictors", "mixtral-relu-biases", "smallthinker-predictors")
MODELS = DENSE + EXPERTS
RECIPES = TINY_MODELS | TINY_EXPERTS
KINDS = (*kind_names(), "sign+lowbit:2")
SCORED = tuple(kind for kind in KINDS if kind not in ("exact", "oracle"))
TOKENS = [5, 17, 250, 33, 101, 9, 77, 140]


@pytest.fixture(scope="module", params=MODELS)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    recipe = RECIPES[request.param]
    return open_gguf(write_model(tmp_path_factory.mktemp("model") / "m.gguf", recipe))


def _serving(kinds: Sequence[str]) -> pytest.MarkDecorator:
    """Every model with every kind that its file can serve."""
    return pytest.mark.parametrize(
        ("file", "kind"),
        [
            (model, kind)
            for model in MODELS
            for kind in kinds
            if RECIPES[model].predictor_rank or not kind.startswith("mlp")
        ],
        indirect=["file"],
    )


def _inputs(count: int = 3, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((count, 32)).astype(np.float32)


def _is_served(file: GGUFFile, kind: str) -> bool:
    has_mlp = any(name.startswith("blk.0.fc1") for name in file.tensors)
    return has_mlp or not kind.startswith("mlp")


def _logits(model: Model, tokens: list[int] = TOKENS) -> FloatArray:
    cache = model.new_cache(32)
    return model.forward(cache.batch([(0, tokens, 0)], [True]), cache)


def _ids(
    ops: Backend, model: Model, kind: str, thresholds: tuple[float, ...], x: FloatArray
) -> ActiveIds:
    built = build_predictor(ops, layer_source(model, 0, None), LayerChoice(kind, thresholds))
    assert built.predictor is not None
    return built.predictor.select(ops, built.ffn, x, x)


@pytest.mark.parametrize("backend", BACKENDS)
@_serving([kind for kind in KINDS if kind != "exact"])
def test_ids_ascend_within_range(file: GGUFFile, kind: str, backend: str) -> None:
    with using(backend) as ops:
        model = load_model(file, ops)
        active = _ids(ops, model, kind, (), _inputs())
        assert active.offsets[0] == 0
        assert active.offsets[-1] == len(active.ids)
        for token in range(3):
            ids = active.of(token)
            assert (np.diff(ids) > 0).all()
            assert len(ids) == 0 or (ids[0] >= 0 and ids[-1] < model.config.num_neurons)


@pytest.mark.parametrize("backend", BACKENDS)
@_serving(SCORED)
def test_lowest_threshold_equals_exact(file: GGUFFile, kind: str, backend: str) -> None:
    with using(backend) as ops:
        model = load_model(file, ops, sparsity="exact")
        lowest = LayerChoice(kind, (float("-inf"),) * (kind.count("+") + 1))
        predicted = with_predictors(model, [lowest] * model.config.num_layers, name=kind)
        assert_close(_logits(predicted), _logits(model), "exact sparse")


@_serving(SCORED)
def test_higher_threshold_passes_fewer(file: GGUFFile, kind: str) -> None:
    with using("reference") as ops:
        model = load_model(file, ops)
        parts = kind.count("+") + 1
        masks = []
        for threshold in (-2.0, 0.0, 2.0):
            active = _ids(ops, model, kind, (threshold,) * parts, _inputs())
            masks.append({(t, int(i)) for t in range(3) for i in active.of(t)})
        assert masks[2] <= masks[1] <= masks[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_oracle_equals_dense(file: GGUFFile, backend: str) -> None:
    with using(backend) as ops:
        dense = _logits(load_model(file, ops, sparsity="off"))
        assert_close(_logits(load_model(file, ops, sparsity="oracle")), dense, "exact sparse")


@pytest.mark.parametrize("backend", NATIVE)
@_serving(KINDS)
def test_threads_do_not_change_bits(file: GGUFFile, kind: str, backend: str) -> None:
    found = []
    for threads in (1, 2, 5):
        with using(backend, threads) as ops:
            found.append(_logits(load_model(file, ops, sparsity=kind), TOKENS[:1]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_native_agrees_with_the_reference(file: GGUFFile) -> None:
    """The same neurons but for those whose score rounds to the other side of the threshold."""
    for kind in SCORED:
        if not _is_served(file, kind):
            continue
        masks = []
        for backend in ("reference", "native-portable"):
            with using(backend) as ops:
                model = load_model(file, ops)
                active = _ids(ops, model, kind, (), _inputs(8))
                mask = np.zeros((8, model.config.num_neurons), bool)
                for token in range(8):
                    mask[token, active.of(token)] = True
                masks.append(mask)
        assert (masks[0] != masks[1]).mean() < 0.02, kind


def test_kinds_say_what_they_look_at(file: GGUFFile) -> None:
    with using("reference") as ops:
        model = load_model(file, ops)
        for kind in SCORED:
            if not _is_served(file, kind):
                continue
            built = build_predictor(ops, layer_source(model, 0, None), LayerChoice(kind))
            assert built.predictor is not None
            expected = PredictorInput.RESIDUAL if "mlp" in kind else PredictorInput.FFN_INPUT
            assert built.predictor.input is expected
            assert built.predictor.kind == kind


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("lowbits:2", "lowbit:2"),
        ("lowbit:5", "lowbit:2, lowbit:3, lowbit:4"),
        ("sign+mlp", "cascade"),
        ("sign+", "'sign+'"),
        ("sign+sign", "sign must be more precise"),
        ("lowbit:2+sign", "sign must be more precise"),
        ("lowbit:3+lowbit", "lowbit:2 must be more precise"),
        ("sign+lowbit:2+lowbit:3+lowbit:4", "at most 3 parts"),
        ("+".join(["sign"] * 20000), "at most 3 parts"),
        ("x" * 100000, "too long"),
        ("sing", "joined by"),
        ("off", "off is not a predictor kind; choose from exact"),
        ("sign+auto", "auto is not a predictor kind"),
        ("exact+sign", "cascade"),
        ("", "Supported"),
        ("sign:1", "sign"),
    ],
)
def test_unknown_kinds_are_named(text: str, hint: str) -> None:
    with pytest.raises(UnsupportedError, match=hint):
        uniform(text, 2)


def test_mlp_without_its_tensors(tmp_path: Path) -> None:
    recipe = replace(TINY_MODELS["llama"], activation="relu")
    file = open_gguf(write_model(tmp_path / "m.gguf", recipe))
    with pytest.raises(PowerInferError, match=r"blk\.0\.fc1\.weight"):
        load_model(file, _reference(), sparsity="mlp")


def _reference() -> Backend:
    with using("reference") as ops:
        return ops
