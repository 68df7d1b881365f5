"""Mixtures of experts on both devices: any plan gives the logits of the CPU."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from placed_models import SMALL, load, make_plan, place, run, tiny_file
from powerinfer.models import Model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
from powerinfer.ops.hybrid.ops import HybridSettings
from tolerances import assert_close

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Prompts of more than two tokens have their cold neurons computed by the CPU.
ON_CPU = HybridSettings(
    max_tokens=2, prefill_crossover=64, online=OnlineSettings(mode=OnlineMode.OFF)
)


def loaded(folder: Path, name: str, kind: str | None = None, format_name: str = "f32") -> Model:
    return load(tiny_file(folder, name, format_name), NativeOps(2), kind)


def check(model: Model, states: str, settings: HybridSettings = SMALL) -> Model:
    """Prefill and decode on both devices as on the CPU; returns the placed model."""
    plan = make_plan(states, 1, num_neurons=model.config.num_neurons)
    placed = place(model, plan, settings, DEVICE)
    assert_close(np.concatenate(run(placed)), np.concatenate(run(model)), "hybrid")
    return placed


@pytest.mark.parametrize("states", ["SS", "FA", "CS", "PF"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mixtral", None),
        ("mixtral-single", None),
        ("mixtral-drelu-transposed", None),
        ("mixtral-drelu-transposed", "off"),
        ("mixtral-relu-biases", None),
    ],
)
@pytest.mark.thorough
def test_any_plan_gives_the_logits_of_the_cpu(
    name: str, kind: str | None, states: str, tmp_path: Path
) -> None:
    check(loaded(tmp_path, name, kind), states)


@pytest.mark.each_value
@pytest.mark.parametrize("states", ["SS", "PA"])
@pytest.mark.parametrize("kind", ["lowbit:4", "sign"])
def test_predictors_choose_among_the_neurons_of_chosen_experts(
    kind: str, states: str, tmp_path: Path
) -> None:
    check(loaded(tmp_path, "mixtral-drelu-transposed", kind), states)


@pytest.mark.parametrize("settings", [SMALL, ON_CPU])
def test_predictors_inside_experts_are_the_cpus(settings: HybridSettings, tmp_path: Path) -> None:
    check(loaded(tmp_path, "mixtral-drelu-predictors"), "SA", settings)


def test_predictors_whose_experts_share_a_layer_are_placed(tmp_path: Path) -> None:
    check(loaded(tmp_path, "smallthinker-predictors", "mlp"), "SA")


def test_a_dense_block_that_the_cpu_predicts_has_no_input_for_a_router(tmp_path: Path) -> None:
    model = load(tiny_file(tmp_path, "llama-relu"), NativeOps(2), "lowbit:4")
    placed = place(model, make_plan("AC", 1), SMALL, DEVICE)
    assert_close(np.concatenate(run(placed)), np.concatenate(run(model)), "hybrid")


def test_a_router_sees_what_its_layer_got(tmp_path: Path) -> None:
    check(loaded(tmp_path, "smallthinker"), "SS")


def test_shared_experts_lie_with_their_attention(tmp_path: Path) -> None:
    """A recorded step cannot wait for the host."""
    placed = check(loaded(tmp_path, "granitemoe-shared"), "SC")
    on_device, on_cpu = (cast("Any", layer.shared_ffn).native for layer in placed.weights.layers)
    assert on_device.slots.is_full
    assert on_device.handoff_layer is None
    assert not isinstance(on_cpu, SplitFFN)


def test_routers_of_placed_blocks_can_be_asked(tmp_path: Path) -> None:
    model = loaded(tmp_path, "mixtral")
    placed = place(model, make_plan("SC", 1, num_neurons=model.config.num_neurons), SMALL, DEVICE)
    x = np.random.default_rng(1).normal(size=(3, model.config.hidden_size)).astype(np.float32)
    for on_both, on_cpu in zip(placed.weights.layers, model.weights.layers, strict=True):
        got, wanted = placed.ops.route(x, on_both.ffn), model.ops.route(x, on_cpu.ffn)
        np.testing.assert_array_equal(got[0], wanted[0])
        np.testing.assert_array_equal(got[1], wanted[1])


# Predictors inside experts, above, are those of a transposed block.
@pytest.mark.parametrize(
    "name",
    [
        "mixtral",
        "mixtral-relu-biases",
        pytest.param("mixtral-drelu-transposed", marks=pytest.mark.thorough),
    ],
)
def test_the_cpu_computes_cold_neurons_of_a_prompt(name: str, tmp_path: Path) -> None:
    check(loaded(tmp_path, name), "SS", ON_CPU)


# A packed matrix differs from one of floats more than two packed ones do.
@pytest.mark.parametrize(
    "format_name", ["f16", pytest.param("q8_0", marks=pytest.mark.thorough), "q4_0"]
)
def test_formats(format_name: str, tmp_path: Path) -> None:
    check(loaded(tmp_path, "mixtral", None, format_name), "SS")


def test_several_sequences_choose_their_own_experts(tmp_path: Path) -> None:
    model = loaded(tmp_path, "mixtral-drelu-transposed")
    plan = make_plan("SS", 3, num_neurons=model.config.num_neurons)
    placed = place(model, plan, HybridSettings(online=ON_CPU.online), DEVICE)
    got, wanted = (np.concatenate(run(each, (0, 1, 2))) for each in (placed, model))
    assert_close(got, wanted, "hybrid")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mixtral-drelu-transposed", None),
        ("mixtral-relu-biases", "off"),
        ("granitemoe-shared", None),
    ],
)
def test_counters_count_neurons_of_chosen_experts(
    name: str, kind: str | None, tmp_path: Path
) -> None:
    model = loaded(tmp_path, name, kind)
    run(model)
    on_cpu = model.ops.counters
    expected = on_cpu.total, on_cpu.predicted, on_cpu.active
    other = loaded(tmp_path, name, kind)
    placed = place(other, make_plan("SS", 1, num_neurons=other.config.num_neurons), ON_CPU, DEVICE)
    run(placed)
    counters = placed.ops.counters
    assert (counters.total, counters.predicted, counters.active) == expected
