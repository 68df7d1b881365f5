"""Files with damaged experts: every command says in one line which key or tensor is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from command_line import assert_error, invoke
from powerinfer.gguf import encode_tensor, open_gguf, write_gguf
from powerinfer.values import FloatArray
from tiny_models import TINY_EXPERTS, write_model

MERGED, SINGLE, BIASED = "mixtral", "mixtral-single", "mixtral-relu-biases"
SIGMOID, OWN_SIZE, GPT_OSS, SHARED = "smallthinker", "qwen3moe", "gpt-oss", "granitemoe-shared"

COMMANDS = {
    "run": ["run", "-p", "ab", "-n", "1"],
    "bench": ["bench", "--prefill", "2", "--decode", "1", "--repeats", "1"],
    "perplexity": ["perplexity", "-f", "TEXT", "-c", "16"],
}


@dataclass
class Content:
    """What a file is written from: keys, and numbers by the tensor's name, in file order."""

    metadata: dict[str, Any]
    tensors: dict[str, FloatArray]
    formats: dict[str, str] = field(default_factory=dict)

    def key(self, name: str) -> str:
        """Full name of a key of the file's architecture."""
        return f"{self.metadata['general.architecture']}.{name}"


Damage = Callable[[Content], None]


def a_key(name: str, value: Any) -> Damage:
    """Another value; None takes the key away."""

    def change(content: Content) -> None:
        if value is None:
            del content.metadata[content.key(name)]
        else:
            content.metadata[content.key(name)] = value

    return change


def gone(*names: str) -> Damage:
    """Tensors that are not there."""

    def change(content: Content) -> None:
        for name in names:
            del content.tensors[name]

    return change


def number(name: str, value: float) -> Damage:
    """The last number of a tensor."""

    def change(content: Content) -> None:
        values = content.tensors[name]
        values[(-1,) * values.ndim] = value

    return change


def reshaped(name: str, cut: Callable[[FloatArray], FloatArray]) -> Damage:
    """A tensor of another shape."""

    def change(content: Content) -> None:
        content.tensors[name] = cut(content.tensors[name])

    return change


def less(axis: int) -> Callable[[FloatArray], FloatArray]:
    """One element less along an axis."""
    return lambda values: np.delete(values, -1, axis)


def flat(values: FloatArray) -> FloatArray:
    """The first axis joined with the second."""
    return values.reshape(-1, *values.shape[2:])


def swapped(values: FloatArray) -> FloatArray:
    """The last two axes swapped."""
    return values.swapaxes(-1, -2)


def in_another_format(name: str) -> Damage:
    """A tensor in f16."""

    def change(content: Content) -> None:
        content.formats[name] = "f16"

    return change


def merged_too(content: Content) -> None:
    """One matrix of single experts beside them as one tensor of all."""
    names = [f"blk.1.ffn_down.{expert}.weight" for expert in range(4)]
    content.tensors["blk.1.ffn_down_exps.weight"] = np.stack([content.tensors[n] for n in names])


def with_choice_bias(content: Content) -> None:
    """A tensor that routers of other families have."""
    content.tensors["blk.1.exp_probs_b.bias"] = np.zeros(4, np.float32)


def damaged(path: Path, model: str, damage: Damage) -> Path:
    """Write a tiny model with one thing wrong."""
    file = open_gguf(write_model(path / "good.gguf", TINY_EXPERTS[model]))
    content = Content(
        dict(file.metadata), {name: tensor.decode() for name, tensor in file.tensors.items()}
    )
    damage(content)
    tensors = [
        encode_tensor(name, np.ascontiguousarray(values), content.formats.get(name, "f32"))
        for name, values in content.tensors.items()
    ]
    write_gguf(path / "bad.gguf", content.metadata, tensors)
    return path / "bad.gguf"


ROUTER = "blk.1.ffn_gate_inp.weight"
ROUTER_BIAS = "blk.1.ffn_gate_inp.bias"
GATE, UP, DOWN = (f"blk.1.ffn_{name}_exps.weight" for name in ("gate", "up", "down"))

KEYS = {
    "too many are used": (MERGED, a_key("expert_used_count", 99), "llama.expert_used_count"),
    "none is used": (MERGED, a_key("expert_used_count", 0), "llama.expert_used_count"),
    "unknown how many are used": (MERGED, a_key("expert_used_count", None), "expert_used_count"),
    "used is a text": (MERGED, a_key("expert_used_count", "2"), "llama.expert_used_count"),
    "count is huge": (MERGED, a_key("expert_count", 2**31), "llama.expert_count"),
    "count is a text": (MERGED, a_key("expert_count", "4"), "llama.expert_count"),
    "unknown rule of sigmoids": (
        SIGMOID,
        a_key("expert_gating_func", 7),
        "smallthinker.expert_gating_func",
    ),
    "no size of an expert": (
        OWN_SIZE,
        a_key("expert_feed_forward_length", None),
        "qwen3moe.expert_feed_forward_length",
    ),
    "unknown rule": (MERGED, a_key("expert_gating_func", 7), "llama.expert_gating_func"),
    "groups of experts": (MERGED, a_key("expert_group_count", 4), "llama.expert_group_count"),
    "first layers without experts": (
        OWN_SIZE,
        a_key("leading_dense_block_count", 1),
        "qwen3moe.leading_dense_block_count",
    ),
    "a bias for the choice": (SIGMOID, with_choice_bias, "blk.1.exp_probs_b.bias"),
}
TENSORS = {
    "more experts than tensors have": (MERGED, a_key("expert_count", 5), ROUTER),
    "fewer experts than tensors have": (MERGED, a_key("expert_count", 3), ROUTER),
    "more single experts": (SINGLE, a_key("expert_count", 5), "blk.0.ffn_gate.4.weight"),
    "no count at all": (MERGED, a_key("expert_count", None), "blk.0.ffn_gate"),
    "router with NaN": (MERGED, number(ROUTER, np.nan), ROUTER),
    "router with infinity": (MERGED, number(ROUTER, np.inf), ROUTER),
    "sigmoid router with NaN": (SIGMOID, number(ROUTER, np.nan), ROUTER),
    "another size of an expert": (OWN_SIZE, a_key("expert_feed_forward_length", 40), GATE),
    "no router bias": (GPT_OSS, gone(ROUTER_BIAS), ROUTER_BIAS),
    "no biases of down": (
        GPT_OSS,
        gone("blk.1.ffn_down_exps.bias"),
        "blk.1.ffn_down_exps.bias",
    ),
    "no shared down": (
        SHARED,
        gone("blk.1.ffn_down_shexp.weight"),
        "blk.1.ffn_down_shexp.weight",
    ),
    "shared up of another size": (
        SHARED,
        reshaped("blk.1.ffn_up_shexp.weight", less(0)),
        "blk.1.ffn_up_shexp.weight",
    ),
    "router bias with NaN": (BIASED, number(ROUTER_BIAS, np.nan), ROUTER_BIAS),
    "router of fewer experts": (MERGED, reshaped(ROUTER, less(0)), ROUTER),
    "router of another width": (MERGED, reshaped(ROUTER, less(1)), ROUTER),
    "router turned": (MERGED, reshaped(ROUTER, swapped), ROUTER),
    "router of one dimension": (MERGED, reshaped(ROUTER, flat), ROUTER),
    "router bias too short": (BIASED, reshaped(ROUTER_BIAS, less(0)), ROUTER_BIAS),
    "no router": (MERGED, gone(ROUTER), ROUTER),
    "no gate": (MERGED, gone(GATE), GATE),
    "no up": (MERGED, gone(UP), UP),
    "no down": (MERGED, gone(DOWN), DOWN),
    "gate of fewer experts": (MERGED, reshaped(GATE, less(0)), GATE),
    "up of fewer neurons": (MERGED, reshaped(UP, less(1)), UP),
    "up of another width": (MERGED, reshaped(UP, less(2)), UP),
    "down of two dimensions": (MERGED, reshaped(DOWN, flat), DOWN),
    "down turned": (MERGED, reshaped(DOWN, swapped), DOWN),
    "one expert missing": (SINGLE, gone("blk.1.ffn_up.2.weight"), "blk.1.ffn_up.2.weight"),
    "one expert smaller": (
        SINGLE,
        reshaped("blk.1.ffn_down.2.weight", less(0)),
        "blk.1.ffn_down.2.weight",
    ),
    "one expert in another format": (
        SINGLE,
        in_another_format("blk.1.ffn_down.2.weight"),
        "blk.1.ffn_down.2.weight",
    ),
    "one matrix merged": (SINGLE, merged_too, "blk.1.ffn_down_exps.weight"),
    "expert 0 missing": (SINGLE, gone("blk.1.ffn_up.0.weight"), "blk.1.ffn_up.0.weight"),
    "gate bias of one dimension": (
        BIASED,
        reshaped("blk.1.ffn_gate_exps.bias", flat),
        "blk.1.ffn_gate_exps.bias",
    ),
    "down bias of fewer experts": (
        BIASED,
        reshaped("blk.1.ffn_down_exps.bias", less(0)),
        "blk.1.ffn_down_exps.bias",
    ),
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Something to measure perplexity on."""
    path = tmp_path / "text.txt"
    path.write_text("once upon a time there was a tiny model " * 4)
    return path


def _invoke(command: str, model: Path, text: Path, *more: str) -> Result:
    first, *others = (str(text) if word == "TEXT" else word for word in COMMANDS[command])
    return invoke(first, "-m", model, *others, *more)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [MERGED, SINGLE, BIASED, SIGMOID, OWN_SIZE, GPT_OSS, SHARED])
def test_undamaged_files_run(tmp_path: Path, text: Path, name: str, command: str) -> None:
    """Else the other tests here would prove nothing."""
    model = damaged(tmp_path, name, lambda _: None)
    result = _invoke(command, model, text)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", [*KEYS, *TENSORS])
def test_a_fault_is_one_line(tmp_path: Path, text: Path, fault: str, command: str) -> None:
    model, damage, named = (KEYS | TENSORS)[fault]
    path = damaged(tmp_path, model, damage)
    assert_error(_invoke(command, path, text), str(path), named)


@pytest.mark.parametrize("fault", [*KEYS, *TENSORS])
def test_inspect_shows_a_damaged_file(tmp_path: Path, fault: str) -> None:
    """It reads the header alone: wrong keys are said, tensors are listed as they are."""
    model, damage, named = (KEYS | TENSORS)[fault]
    result = invoke("inspect", damaged(tmp_path, model, damage), "--tensors")
    assert result.exit_code == 0, result.output
    if fault in KEYS:
        problem = next(
            line for line in result.stdout.splitlines() if line.startswith("cannot be run")
        )
        assert named in problem


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (reshaped("blk.1.fc1_exps.weight", less(0)), "blk.1.fc1_exps.weight"),
        (reshaped("blk.1.fc1_exps.weight", less(2)), "blk.1.fc1_exps.weight"),
        (reshaped("blk.1.fc2_exps.weight", less(1)), "blk.1.fc2_exps.weight"),
        (reshaped("blk.1.fc2_exps.weight", flat), "blk.1.fc2_exps.weight"),
        (gone("blk.1.fc2_exps.weight"), "blk.1.fc2_exps.weight"),
    ],
)
def test_a_predictor_that_does_not_fit_is_one_line(
    tmp_path: Path, text: Path, damage: Damage, named: str, command: str
) -> None:
    path = damaged(tmp_path, "mixtral-drelu-predictors", damage)
    result = _invoke(command, path, text, "--sparsity", "mlp")
    assert_error(result, str(path), named)


@pytest.mark.parametrize("command", [*COMMANDS, "inspect"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_one_line(
    tmp_path: Path, text: Path, command: str, share: float
) -> None:
    path = damaged(tmp_path, MERGED, lambda _: None)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    result = invoke("inspect", path) if command == "inspect" else _invoke(command, path, text)
    assert_error(result, str(path))
