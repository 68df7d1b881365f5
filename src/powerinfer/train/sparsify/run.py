"""Training of the whole model towards the next token, its own or a teacher's."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from powerinfer.train.autocast import autocast
from powerinfer.train.density import DensityPenalty
from powerinfer.train.sparsify.log import LOG_FILE, StepFigures
from powerinfer.train.sparsify.model import SparseModel
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.rows import TokenIds
from powerinfer.train.sparsify.steps import ResumableSteps, StepFiles, ZeroCount

__all__ = ["CHECKPOINT_FILE", "SparsifyRun", "StepFigures", "fingerprint"]

CHECKPOINT_FILE = "checkpoint.pt"


class SparsifyRun(ResumableSteps):
    """One training run.

    Attributes:
        model: the weights so far; the caller's own.
    """

    def __init__(
        self,
        model: SparseModel,
        tokens: TokenIds,
        recipe: Recipe,
        folder: Path,
        teacher: SparseModel | None = None,
    ) -> None:
        """Begin, or resume the run in `folder`, which gets `checkpoint.pt` and `training.jsonl`.

        The model is as before the first step, with the activation to train. A teacher, to which it
        stays close, is needed if `recipe.distill` is not 0.
        """
        self.model, self._teacher = model, teacher
        files = StepFiles(folder, CHECKPOINT_FILE, LOG_FILE, "learning_rate")
        super().__init__(model.network, fingerprint(model), tokens, recipe, files)

    def _backward(self, rows: Tensor, share: float, zeros: ZeroCount) -> float:
        inputs, targets = rows[:, :-1], rows[:, 1:].flatten()
        weight, density = self.recipe.density_penalty, DensityPenalty()

        def observe(layer: int, neurons: Tensor) -> None:
            zeros(layer, neurons)
            if weight:
                density(layer, neurons)

        with autocast(self._device, is_on=self._is_bf16):
            with self.model.watched(observe):
                logits = self.model.logits(inputs).flatten(0, 1)
            loss = F.cross_entropy(logits, targets)
            goal = loss + density.mean() * weight if weight else loss
            if self._teacher is not None and self.recipe.distill:
                goal = goal + _divergence(self._teacher, inputs, logits) * self.recipe.distill
        (goal * share).backward()
        return float(loss.detach()) * share


def _divergence(teacher: SparseModel, inputs: Tensor, logits: Tensor) -> Tensor:
    """Mean divergence of the predictions from the teacher's, in nats per token."""
    with torch.no_grad():
        wanted = teacher.logits(inputs).flatten(0, 1).float().log_softmax(-1)
    found = logits.float().log_softmax(-1)
    return F.kl_div(found, wanted, log_target=True, reduction="batchmean")


def fingerprint(model: SparseModel) -> str:
    """An identity of a model before its first step: activation, shapes, some weights."""
    found = hashlib.sha256(model.activation.encode())
    for name, parameter in model.network.named_parameters():
        found.update(f"{name} {tuple(parameter.shape)}".encode())
        values = parameter.detach().flatten()
        samples = values[:: max(1, len(values) // 256)]
        found.update(samples.float().cpu().numpy().tobytes())
    return found.hexdigest()
