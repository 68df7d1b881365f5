"""`LLM(observe=...)`: every layer of every step is shown as it was, and nothing else changes."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from powerinfer import LLM, PromptError, SamplingParams
from powerinfer.calibration.observing import FFNObservation
from powerinfer.gguf import open_gguf
from powerinfer.ops.reference.ffn import activate
from powerinfer.values import ActivationKind, FloatArray
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model
from tolerances import assert_close

PROMPT = [1, 40, 70, 90, 100]
GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
SPARSE = ("bamboo", "llama-powerinfer", "falcon-powerinfer", "opt-powerinfer")
ALL = tuple(TINY_MODELS | TINY_EXPERTS)
DENSE = tuple(name for name in ALL if name not in TINY_EXPERTS)
EXPERTS = ("mixtral-drelu-predictors", "smallthinker-predictors")
KINDS = ("off", "exact", "mlp", "sign", "lowbit:2", "sign+lowbit:2", "oracle")


def _path(folder: Path, name: str) -> Path:
    return write_model(folder / f"{name}.gguf", (TINY_MODELS | TINY_EXPERTS)[name])


def _observe(path: Path, *, kernels: str | None = None, **options: str) -> list[FFNObservation]:
    """One prefill and three steps of decoding."""
    seen: list[FFNObservation] = []
    sparsity = options.get("sparsity")
    with LLM(path, kernels=kernels, sparsity=sparsity, observe=seen.append) as llm:
        llm.generate([PROMPT], GREEDY)
    return seen


def _logits(path: Path, sparsity: str | None, *, is_observed: bool) -> list[FloatArray]:
    """Of one step with several tokens and one with a single token."""
    seen: list[FFNObservation] = []
    with LLM(path, sparsity=sparsity, observe=seen.append if is_observed else None) as llm:
        sequence = llm.new_sequence()
        found = [sequence.extend_scored(PROMPT, len(PROMPT)), sequence.extend([7])]
        counters = llm.loaded.model.ops.counters
        counts = (counters.active, counters.predicted, counters.total, counters.bytes_read)
    return [*found, np.array(counts, np.float32)]


@pytest.mark.parametrize("name", ALL)
def test_nothing_that_is_computed_changes(tmp_path: Path, name: str) -> None:
    path = _path(tmp_path, name)
    unobserved = _logits(path, None, is_observed=False)
    for plain, watched in zip(unobserved, _logits(path, None, is_observed=True), strict=True):
        np.testing.assert_array_equal(plain, watched)


@pytest.mark.parametrize("name", [*SPARSE, *EXPERTS])
@pytest.mark.parametrize("sparsity", KINDS)
def test_no_setting_computes_otherwise(tmp_path: Path, name: str, sparsity: str) -> None:
    path = _path(tmp_path, name)
    unobserved = _logits(path, sparsity, is_observed=False)
    for plain, watched in zip(unobserved, _logits(path, sparsity, is_observed=True), strict=True):
        np.testing.assert_array_equal(plain, watched)


@pytest.mark.parametrize("name", ALL)
def test_each_layer_of_each_step_is_shown_once(tmp_path: Path, name: str) -> None:
    seen = _observe(_path(tmp_path, name))
    recipe = (TINY_MODELS | TINY_EXPERTS)[name]
    kinds = recipe.pattern if recipe.has_single_parts else "-" * recipe.num_layers
    layers = [number for number, kind in enumerate(kinds) if kind in "-E"]
    # Of a prompt the last layer computes the token that is wanted.
    prompt = [(layer, 1 if layer == len(kinds) - 1 else len(PROMPT)) for layer in layers]
    assert [(one.layer, one.num_tokens) for one in seen] == [
        *prompt,
        *[(layer, 1) for layer in layers] * 3,
    ]
    if not layers or layers[-1] != len(kinds) - 1:
        return
    last = len(layers) - 1
    assert seen[0].token_ids.tolist() == PROMPT
    assert seen[0].positions.tolist() == list(range(len(PROMPT)))
    assert seen[last].token_ids.tolist() == PROMPT[-1:]
    assert [one.positions.tolist() for one in seen[last :: last + 1]] == [[4], [5], [6], [7]]
    assert all(set(one.sequences.tolist()) == {0} for one in seen)


@pytest.mark.parametrize("kernels", ["reference", None])
@pytest.mark.parametrize("name", DENSE)
def test_the_arrays_fit_each_other(tmp_path: Path, name: str, kernels: str | None) -> None:
    """The output follows from gate, up and down, computed here from the file."""
    path = _path(tmp_path, name)
    file = open_gguf(path)
    with LLM(path, kernels="reference") as llm:
        activation = llm.loaded.model.config.activation
    for one in _observe(path, kernels=kernels, sparsity="exact" if activation.is_sparse else "off"):
        recipe = TINY_MODELS[name]
        size = recipe.intermediate_size
        if recipe.gemma4 is not None:
            size = recipe.gemma4.ffn_size(one.layer, size)
        neurons = (one.num_tokens, size)
        assert one.input.shape == one.output.shape == (one.num_tokens, recipe.hidden_size)
        assert one.up.shape == one.fires.shape == neurons
        assert (one.gate is not None) == recipe.is_gated
        assert one.kind == ("exact" if activation.is_sparse else "off")
        assert one.predicted is None

        def tensor(part: str, layer: int = one.layer) -> FloatArray:
            return file.tensors[f"blk.{layer}.{part}"].decode()

        def bias(part: str, layer: int = one.layer) -> FloatArray | float:
            name = f"blk.{layer}.{part}.bias"
            return file.tensors[name].decode() if name in file.tensors else 0.0

        up = one.input @ tensor("ffn_up.weight").T + bias("ffn_up")
        assert_close(one.up, up.astype(np.float32), "native float")
        gate = None
        if one.gate is not None:
            gate = (one.input @ tensor("ffn_gate.weight").T + bias("ffn_gate")).astype(np.float32)
            assert_close(one.gate, gate, "native float")
        values = activate(
            activation,
            None if one.gate is None else one.gate.astype(np.float64),
            one.up.astype(np.float64),
        )
        assert ((values != 0) == one.fires).all()
        if activation.kind is not ActivationKind.SILU:
            assert activation.kind is ActivationKind.GELU or 0 < one.fires.mean() < 1
        is_transposed = f"blk.{one.layer}.ffn_down_t.weight" in file.tensors
        down = tensor("ffn_down_t.weight") if is_transposed else tensor("ffn_down.weight").T
        output = values @ down + bias("ffn_down_t" if is_transposed else "ffn_down")
        assert_close(one.output, output.astype(np.float32), "exact sparse")


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("sparsity", ["mlp", "sign", "lowbit:2", "sign+lowbit:2", "oracle"])
def test_predicted_neurons_are_those_that_ran(tmp_path: Path, name: str, sparsity: str) -> None:
    path = _path(tmp_path, name)
    file = open_gguf(path)
    with LLM(path, sparsity="exact") as llm:
        activation = llm.loaded.model.config.activation
    for one in _observe(path, sparsity=sparsity):
        assert one.kind == sparsity
        assert one.predicted is not None
        assert one.predicted.shape == one.fires.shape
        if sparsity == "oracle":
            np.testing.assert_array_equal(one.predicted, one.fires)
        gate = None if one.gate is None else one.gate.astype(np.float64)
        values = activate(activation, gate, one.up.astype(np.float64)) * one.predicted
        output = values @ file.tensors[f"blk.{one.layer}.ffn_down_t.weight"].decode()
        bias = file.tensors.get(f"blk.{one.layer}.ffn_down_t.bias")
        if bias is not None:
            output = output + bias.decode()
        assert_close(one.output, output.astype(np.float32), "exact sparse")


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("sparsity", KINDS)
def test_neurons_of_experts_are_those_of_the_chosen(
    tmp_path: Path, name: str, sparsity: str
) -> None:
    path = _path(tmp_path, name)
    num_used = TINY_EXPERTS[name].num_used_experts
    tensors = open_gguf(path).tensors
    with LLM(path, sparsity="exact") as llm:
        activation = llm.loaded.model.config.activation
    for one in _observe(path, sparsity=sparsity):
        assert one.experts is not None
        assert one.expert_weights is not None
        assert one.gate is not None
        assert one.gate.shape == one.up.shape == one.fires.shape == (one.num_tokens, num_used * 48)
        assert (one.predicted is None) == (sparsity in ("off", "exact"))
        gate, up, down = (
            tensors[f"blk.{one.layer}.ffn_{part}.weight"].decode().astype(np.float64)
            for part in ("gate_exps", "up_exps", "down_exps_t")
        )
        router = tensors[f"blk.{one.layer}.ffn_gate_inp.weight"].decode()
        assert "intermediate_size=48" in repr(one)
        for token, experts in enumerate(one.experts):
            x = one.input[token].astype(np.float64)
            weights = one.expert_weights[token]
            # The router of the other sees what no observation has.
            if name.startswith("mixtral"):
                logits = router @ x
                assert sorted(np.argsort(-logits)[:num_used]) == experts.tolist()
                powers = np.exp(logits[experts])
                np.testing.assert_allclose(weights, powers / powers.sum(), rtol=1e-4)
            np.testing.assert_allclose(one.gate[token], (gate[experts] @ x).reshape(-1), atol=1e-5)
            np.testing.assert_allclose(one.up[token], (up[experts] @ x).reshape(-1), atol=1e-5)
            of_token = [
                values[token : token + 1].astype(np.float64) for values in (one.gate, one.up)
            ]
            values = activate(activation, *of_token)[0]
            assert ((values != 0) == one.fires[token]).all()
            if one.predicted is not None:
                values = values * one.predicted[token]
            weighed = values * np.repeat(weights, 48)
            output = weighed @ down[experts].reshape(-1, 32)
            assert_close(one.output[token], output.astype(np.float32), "exact sparse")


def test_a_calibrated_model_is_observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen: list[FFNObservation] = []
    path = _path(tmp_path, "bamboo")
    with LLM(path, max_ffn_error=0.3, observe=seen.append) as llm:
        llm.generate([PROMPT], GREEDY)
        kinds = llm.loaded.model.layer_kinds
        assert llm.loaded.model.sparsity == "calibrated"
    # Calibrating runs the model too, and is no part of what was asked to be observed.
    assert len(seen) == 8
    assert [one.kind for one in seen[:2]] == list(kinds)


def test_an_observation_is_shown_without_its_numbers(tmp_path: Path) -> None:
    shown = repr(_observe(_path(tmp_path, "bamboo"), sparsity="sign")[0])
    assert shown.startswith("FFNObservation(layer=0, kind='sign', num_tokens=")
    assert shown.endswith(", hidden_size=32, intermediate_size=48)")


def test_arrays_belong_to_the_observer(tmp_path: Path) -> None:
    """What is kept stays as it was, and writing to it does nothing to the model."""
    path = _path(tmp_path, "opt-post-norm")
    kept: list[FFNObservation] = []
    copies: list[list[FloatArray]] = []

    def spoil(one: FFNObservation) -> None:
        for array in (one.input, one.up, one.output, one.positions, one.token_ids, one.fires):
            array[...] = 0

    def keep(one: FFNObservation) -> None:
        kept.append(one)
        copies.append([one.input.copy(), one.output.copy()])

    with LLM(path) as plain, LLM(path, observe=spoil) as spoilt, LLM(path, observe=keep) as watched:
        texts = [llm.generate([PROMPT], GREEDY)[0].token_ids for llm in (plain, spoilt, watched)]
    assert texts[0] == texts[1] == texts[2]
    for one, (given, returned) in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(one.input, given)
        np.testing.assert_array_equal(one.output, returned)


class _Failing:
    """A callable object that fails in one layer, once."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def __call__(self, one: FFNObservation) -> None:
        self.layers.append(one.layer)
        if len(self.layers) == 4:
            raise LookupError("what the observer says")


def test_what_an_observer_raises_ends_the_call_alone(tmp_path: Path) -> None:
    path = _path(tmp_path, "bamboo")
    observe = _Failing()
    with LLM(path, observe=observe) as llm, LLM(path) as plain:
        with pytest.raises(LookupError, match="what the observer says"):
            llm.generate([PROMPT], GREEDY)
        assert observe.layers == [0, 1, 0, 1]
        again = llm.generate([PROMPT], GREEDY)[0]
        assert again.token_ids == plain.generate([PROMPT], GREEDY)[0].token_ids
        assert again.metrics.total_neurons == 3 * 2 * 48


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cuda"}, "observe works on the CPU alone: leave it or device='cuda' out"),
        ({"vram_budget": "1GiB"}, "leave it or vram_budget out"),
        ({"measure_recall": True}, "at the same time: leave observe or measure_recall out"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(PromptError, match=said):
        LLM(_path(tmp_path, "bamboo"), observe=print, **options)  # type: ignore[arg-type]


def test_a_gpu_that_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(options: object) -> None:
        asked.append(getattr(options, "device", ""))

    monkeypatch.setattr("powerinfer.loading.loader.find_device", find)
    with LLM(_path(tmp_path, "bamboo"), observe=print) as llm:
        assert llm.loaded.device == "cpu"
    assert asked == ["cpu"]


def test_threads_that_share_weights_see_their_own_steps(tmp_path: Path) -> None:
    prompts = [[1, *range(40 + 20 * number, 52 + 20 * number)] for number in range(3)]
    seen: list[FFNObservation] = []
    with LLM(_path(tmp_path, "bamboo"), observe=seen.append) as llm:
        for prompt in prompts:
            LLM.of(llm.loaded).generate([prompt], GREEDY)
        alone, seen[:] = {_key(one): one for one in seen}, []
        users = [LLM.of(llm.loaded) for _ in prompts]
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda user, prompt: user.generate([prompt], GREEDY), users, prompts))
    assert len(seen) == len(alone) == 8 * len(prompts)
    for one in seen:
        same = alone[_key(one)]
        np.testing.assert_array_equal(one.input, same.input)
        np.testing.assert_array_equal(one.up, same.up)
        np.testing.assert_array_equal(one.output, same.output)


def _key(one: FFNObservation) -> tuple[int, bytes, bytes, bytes]:
    return one.layer, one.token_ids.tobytes(), one.positions.tobytes(), one.input.tobytes()


def _ids(seen: Sequence[FFNObservation]) -> list[int]:
    return [int(token) for one in seen if one.layer == 0 for token in one.token_ids]


def test_logits_computed_directly_are_observed(tmp_path: Path) -> None:
    seen: list[FFNObservation] = []
    with LLM(_path(tmp_path, "falcon"), observe=seen.append, batch_size=2) as llm:
        llm.new_sequence().extend(PROMPT)
    assert _ids(seen) == PROMPT
    # Batches whose logits nobody wants end before the last FFN.
    assert [one.positions.tolist() for one in seen if one.layer == 1] == [[4]]


def test_an_observer_that_is_no_function_is_refused_at_once(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    with pytest.raises(PromptError, match="observe must be a function of one argument, got 3"):
        LLM(path, observe=3)  # type: ignore[arg-type]
