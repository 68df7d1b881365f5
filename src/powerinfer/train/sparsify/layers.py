"""Teaching each FFN alone to give what the old one gave: local, and before the whole model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from powerinfer.train.autocast import autocast
from powerinfer.train.density import DensityPenalty
from powerinfer.train.sparsify.model import SparseModel
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.rows import TokenIds
from powerinfer.train.sparsify.run import fingerprint
from powerinfer.train.sparsify.steps import ResumableSteps, StepFiles, ZeroCount

__all__ = ["LAYERS_FILE", "LAYERS_LOG", "LayerRun"]

LAYERS_FILE = "layers.pt"
LAYERS_LOG = "layers.jsonl"

_Seen: TypeAlias = Callable[[int, Tensor, Tensor], None]
"""Called with (layer, input of its FFN, output) for every FFN evaluated."""


class LayerRun(ResumableSteps):
    """Training of every FFN on the inputs and outputs that its old one has in the unchanged model.

    No FFN sees what the others have become, so one pass of the unchanged model teaches all of them,
    and only one layer's intermediates are in memory. The loss is the mean over layers and tokens of
    the squared error, relative to the token's own output and a typical one's: the few tokens with
    outputs a thousand times as large count as much as any other.
    """

    def __init__(
        self,
        model: SparseModel,
        tokens: TokenIds,
        recipe: Recipe,
        folder: Path,
        teacher: SparseModel,
    ) -> None:
        """Begin, or resume the run in `folder`, which gets `layers.pt` and `layers.jsonl`.

        The model has the weights of the teacher and the activation to train.
        """
        self.model, self._teacher = model, teacher
        identity = fingerprint(model)
        files = StepFiles(folder, LAYERS_FILE, LAYERS_LOG, "layer_rate")
        super().__init__(nn.ModuleList(model.ffns), identity, tokens, recipe, files)
        if self.step == 0 and model.activation == "drelu":
            first = self._rows[: recipe.pass_rows].astype(np.int64)
            _choose_signs(model, teacher, torch.from_numpy(first).to(self._device))

    def _backward(self, rows: Tensor, share: float, zeros: ZeroCount) -> float:
        ffns, losses = self.model.ffns, []
        weight = self.recipe.density_penalty

        def teach(layer: int, x: Tensor, wanted: Tensor) -> None:
            ffn, density = ffns[layer], DensityPenalty()
            with torch.enable_grad():
                neurons = ffn.neurons(x)
                loss = _relative_error(ffn.down_proj(neurons), wanted)
                zeros(layer, neurons)
                losses.append(loss.detach())
                if weight:
                    density(layer, neurons)
                    loss = loss + density.mean() * weight
                (loss * share).backward()

        with autocast(self._device, is_on=self._is_bf16):
            _run_through(self._teacher, rows[:, :-1], teach)
        return float(torch.stack(losses).mean()) * share

    def _clip(self) -> float:
        limit = self.recipe.max_gradient
        clip = torch.nn.utils.clip_grad_norm_
        return sum(float(clip(ffn.parameters(), limit)) for ffn in self.model.ffns)


def _relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """Mean over tokens of the squared error by the squared output, a typical one added."""
    wanted = wanted.float()
    power = wanted.square().sum(-1).clamp_min(1e-12)
    typical = power.log().mean().exp()
    return ((found.float() - wanted).square().sum(-1) / (power + typical)).mean()


def _run_through(model: SparseModel, token_ids: Tensor, seen: _Seen) -> None:
    """Run a model without its head and without gradients; show inputs and outputs of its FFNs."""
    hooks = [
        ffn.register_forward_hook(partial(_show, seen, layer))
        for layer, ffn in enumerate(model.ffns)
    ]
    try:
        with torch.no_grad():
            model.network.model(input_ids=token_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()


def _show(
    seen: _Seen, layer: int, _ffn: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
) -> None:
    seen(layer, inputs[0], output)


def _choose_signs(model: SparseModel, teacher: SparseModel, rows: Tensor) -> None:
    """Negate up and down of neurons of which dReLU would otherwise keep the smaller part.

    The old neuron is the same with both negated, the new one keeps its values where up is positive.
    """

    def choose(layer: int, x: Tensor, _output: Tensor) -> None:
        old, ffn = teacher.ffns[layer], model.ffns[layer]
        gate, up = old.gate_proj(x).clamp_min(0), old.up_proj(x)
        kept = (gate * up).square() * up.sign()
        signs = torch.where(kept.flatten(0, -2).sum(0) < 0, -1.0, 1.0)
        ffn.up_proj.weight.copy_(old.up_proj.weight * signs[:, None])
        ffn.down_proj.weight.copy_(old.down_proj.weight * signs)

    _run_through(teacher, rows[:, :-1], choose)
