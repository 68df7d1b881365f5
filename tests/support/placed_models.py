"""Tiny models placed on torch's device by random plans, for tests of both devices together."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.offload.placing import place_model
from powerinfer.ops.backend import AnyBackend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
from powerinfer.ops.hybrid.ops import HybridOps, HybridSettings
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.values import FloatArray
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

__all__ = ["NEURONS", "SMALL", "load", "make_plan", "place", "run", "tiny_file"]

NEURONS = 64

# Prompts of more than two tokens are computed like long ones; neurons stay where they are.
SMALL = HybridSettings(
    max_tokens=2, prefill_crossover=0, online=OnlineSettings(mode=OnlineMode.OFF)
)

_PROMPT, _REST = [5, 17, 250, 33], [9, 77, 140]


def tiny_file(folder: Path, name: str, format_name: str = "f32") -> Path:
    """A tiny model whose neurons fill whole blocks of 32, so that down may be stored either way."""
    recipe = (TINY_MODELS | TINY_EXPERTS)[name]
    recipe = replace(recipe, format=format_name, intermediate_size=NEURONS)
    return write_model(folder / f"{name}-{format_name}.gguf", recipe)


def load(
    path: Path,
    ops: AnyBackend,
    kind: str | None = None,
) -> Model:
    """A model on one device."""
    return load_model(open_gguf(path), ops, sparsity=kind)


def make_plan(
    states: str, seed: int = 0, *, has_output: bool = True, num_neurons: int = NEURONS
) -> PlacementPlan:
    """A letter for each layer.

    C: on the CPU. A: attention on the device. P: the predictor too, and no neuron. S: some
    neurons too. F: all.
    """
    random = np.random.default_rng(seed)
    layers = []
    for state in states:
        hot = np.arange(num_neurons, dtype=np.int32) if state == "F" else np.zeros(0, np.int32)
        if state == "S":
            hot = np.flatnonzero(random.random(num_neurons) < random.random()).astype(np.int32)
        layers.append(LayerPlacement(state != "C", state in "PSF", hot))
    return PlacementPlan("", "test", 0, num_neurons, has_output, tuple(layers))


def place(
    model: Model, plan: PlacementPlan, settings: HybridSettings = SMALL, device: str = "cpu"
) -> Model:
    """The model on both devices."""
    cpu: object = model.ops
    if not isinstance(cpu, NativeOps):
        raise TypeError(f"a model on {model.ops.name} cannot be placed")
    return place_model(model, HybridOps(cpu, TorchGPU(device), plan, settings))


def run(model: Model, sequences: Sequence[int] = (0,), **options: Any) -> list[FloatArray]:
    """A prompt and some tokens after it: the logits of every step, sequence after sequence.

    Sequences share their steps; each has a prompt of its own, by its number.
    """
    cache = model.new_cache(64 * len(sequences), **options)
    steps = [[token + number for token in _PROMPT] for number in sequences]
    logits = [
        model.forward(
            cache.batch(
                [(number, ids, 0) for number, ids in zip(sequences, steps, strict=True)],
                [True] * len(steps),
            ),
            cache,
        )
    ]
    for position, token in enumerate(_REST, len(_PROMPT)):
        parts = [(number, [token + number], position) for number in sequences]
        logits.append(model.forward(cache.batch(parts, [False] * len(parts)), cache))
    return logits
