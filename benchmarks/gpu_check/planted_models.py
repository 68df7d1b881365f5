"""Planted models of two layers in files, as wide as real ones, and where their parts are put."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planting.recipe import Knobs, format_named
from planting.shapes import SHAPES, PlantedShape, architecture_metadata
from planting.stream import PlantedStream
from powerinfer.gguf import write_gguf
from powerinfer.models import Model
from powerinfer.offload.placing import place_model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.placement.plan import LayerPlacement, PlacementPlan

__all__ = [
    "CONTEXT",
    "MODELS",
    "TINY",
    "PlantedModel",
    "make",
    "models_for",
    "place_by_plan",
    "plan_of_state",
]

CONTEXT = 1024
_LAYERS = 2
# A head of full size would take longer to make than the layers.
_VOCABULARY = 8192


@dataclass(frozen=True)
class PlantedModel:
    """A model that can be made.

    Attributes:
        shape_name: key of `SHAPES`.
        format_name: of its matrices.
    """

    shape_name: str
    format_name: str

    @property
    def name(self) -> str:
        """For people and for the file."""
        return f"{self.shape_name}-{self.format_name}"

    @property
    def shape(self) -> PlantedShape:
        """Two layers; a tiny one even smaller than in `SHAPES`: its kernels are interpreted."""
        shape = replace(SHAPES[self.shape_name], num_layers=_LAYERS, context_length=CONTEXT)
        if self.is_tiny:
            return replace(
                shape, hidden_size=64, intermediate_size=128, num_heads=2, num_kv_heads=1
            )
        return replace(shape, vocab_size=min(_VOCABULARY, shape.vocab_size))

    @property
    def is_tiny(self) -> bool:
        """For a machine without a GPU."""
        return self.shape_name.startswith("tiny")

    def path(self, folder: Path) -> Path:
        """Where it is made."""
        return folder / f"{self.name}.powerinfer.gguf"


MODELS = tuple(
    PlantedModel(shape, format_name)
    for format_name in ("f16", "q4_0", "q8_0")
    for shape in ("relullama-7b", "falcon-40b")
)
TINY = (PlantedModel("tiny", "f16"), PlantedModel("tiny-falcon", "q4_0"))


def models_for(*, is_cuda: bool) -> tuple[PlantedModel, ...]:
    """Those that a device can run in time, the most important first."""
    return MODELS if is_cuda else TINY


def make(models: Iterable[PlantedModel], folder: Path) -> None:
    """Write the files; one that is there is whole."""
    for model in models:
        path = model.path(folder)
        unfinished = path.with_suffix(".part")
        shape = model.shape
        stream = PlantedStream(shape, _knobs(model), format_named(model.format_name), seed=1234)
        metadata = architecture_metadata(shape, model.name)
        metadata["powerinfer.sparse_threshold"] = np.float32(0)
        write_gguf(unfinished, metadata, list(stream.tensors()), magic="PWRI")
        unfinished.rename(path)


def _knobs(model: PlantedModel) -> Knobs:
    return Knobs(
        density=model.shape.density,
        rank=32 if model.is_tiny else 1024,
        noise=0.02,
        margin=0.15,
        exponent=0.9,
        weight_format=format_named(model.format_name),
        # Packed predictors round the input, so that devices may decide differently about a neuron:
        # where weights are f16, no such difference shall hide another.
        predictor_format=format_named("f16" if model.format_name == "f16" else "q4_0"),
    )


def plan_of_state(model: Model, state: str) -> PlacementPlan:
    """Every layer in one state, and the output head on the GPU; see docs/hybrid.md.

    Args:
        model: on the CPU.
        state: F (everything on the GPU), S (attention, predictor and every third neuron) or A
            (attention alone).
    """
    config = model.config
    step = {"F": 1, "S": 3}.get(state)
    hot = np.arange(0, config.intermediate_size if step else 0, step or 1, dtype=np.int32)
    layers = tuple(
        LayerPlacement(
            has_attention=True,
            has_predictor=state != "A" and layer.ffn.predictor is not None,
            hot=hot,
        )
        for layer in model.weights.layers
    )
    return PlacementPlan(
        model_identity="",
        solver=f"state {state}",
        budget_bytes=0,
        num_neurons=config.intermediate_size,
        has_output=True,
        layers=layers,
    )


def place_by_plan(
    cpu: NativeOps, model: Model, plan: PlacementPlan, device: str, *, handoff: str = "auto"
) -> Model:
    """The model on both devices; its neurons stay where the plan puts them.

    Args:
        cpu: that the model is loaded on.
        model: on the CPU.
        plan: what shall be where.
        device: torch's name of the GPU.
        handoff: one of `powerinfer.ops.hybrid.build.HANDOFFS`; `eager` records nothing.
    """
    from powerinfer.ops.gpu.ops import TorchGPU
    from powerinfer.ops.hybrid.migration import OnlineMode, OnlineSettings
    from powerinfer.ops.hybrid.ops import HybridOps, HybridSettings

    settings = HybridSettings(handoff=handoff, online=OnlineSettings(mode=OnlineMode.OFF))
    return place_model(model, HybridOps(cpu, TorchGPU(device), plan, settings))
