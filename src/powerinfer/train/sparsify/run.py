"""A training run that ends with the same bits however often it is interrupted."""

import hashlib
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.train.autocast import autocast, compute_repeatably, has_bf16
from powerinfer.train.checkpoint import load_checkpoint, save_checkpoint
from powerinfer.train.density import DensityPenalty
from powerinfer.train.fused import PredictionLoss
from powerinfer.train.sparsify.log import StepFigures, TrainingLog
from powerinfer.train.sparsify.model import SparseModel
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.rows import TokenIds, identity_of, row_numbers, rows_of

__all__ = ["CHECKPOINT_FILE", "SparsifyRun", "StepFigures", "fingerprint"]

# Of one pass. With a teacher and their gradients they take at most 16 bytes each, here 2 GiB.
_MAX_LOGITS = 1 << 27

CHECKPOINT_FILE = "checkpoint.pt"


class SparsifyRun:
    """One training run; two runs that reach the same step on one machine are equal.

    Attributes:
        model: the weights so far; the caller's own.
        seconds: time spent in them, all sessions together.
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
        self.model, self.recipe, self._teacher = model, recipe, teacher
        self._folder = folder
        self._rows = rows_of(tokens, recipe.seq_len)
        self._identity = f"{recipe!r} {fingerprint(model)} {identity_of(tokens)}"
        self._optimizer = _make_optimizer(model, recipe)
        self._is_bf16 = has_bf16(model.device)
        compute_repeatably(model.device)
        self._log = TrainingLog(folder)
        self.step = 0
        self.seconds = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._resume()

    @property
    def is_done(self) -> bool:
        """All steps are made."""
        return self.step >= self.recipe.steps

    def _resume(self) -> None:
        state = load_checkpoint(self._folder / CHECKPOINT_FILE, self._identity)
        if state is None:
            self._log.restore([], 0)
            return
        self.model.network.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self._log.restore(state["log"], self.step)

    def save(self) -> None:
        """Write the state, atomically."""
        state = {
            "model": _on_cpu(self.model.network.state_dict()),
            "optimizer": _on_cpu(self._optimizer.state_dict()),
            "log": self._log.state(),
            "step": self.step,
            "seconds": self.seconds,
        }
        save_checkpoint(self._folder / CHECKPOINT_FILE, self._identity, state)

    def advance(self) -> StepFigures:
        """Make one optimizer step.

        Raises:
            NumericsError: the loss or its gradient is not finite; the weights stay as they were
                before the step, and are saved.
        """
        began = time.monotonic()
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step)
        rows = self._rows[row_numbers(self.step, len(self._rows), self.recipe)]
        zeros = _ZeroCount(len(self.model.ffns))
        self.model.network.train()
        loss = sum((self._backward(part, zeros) for part in self._passes(rows)), 0.0)
        parameters = self.model.network.parameters()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.recipe.max_gradient))
        self._check(loss, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        self.model.network.eval()
        self.step += 1
        took = time.monotonic() - began
        self.seconds += took
        figures = StepFigures(self.step, loss, zeros.shares(), self.recipe.step_tokens / took)
        self._log.add(figures, is_last=self.is_done)
        return figures

    def _passes(self, rows: TokenIds) -> list[TokenIds]:
        per_row = self.recipe.seq_len * self.model.network.config.vocab_size
        size = max(1, min(self.recipe.pass_rows, _MAX_LOGITS // per_row))
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    def _backward(self, rows: TokenIds, zeros: "_ZeroCount") -> float:
        """Add the gradient of some rows of a step; return their share of its loss."""
        token_ids = torch.from_numpy(rows.astype(np.int64)).to(self.model.device)
        inputs, targets = token_ids[:, :-1], token_ids[:, 1:].flatten()
        weight, density = self.recipe.density_penalty, DensityPenalty()

        def observe(layer: int, neurons: Tensor) -> None:
            zeros(layer, neurons)
            if weight:
                density(layer, neurons)

        with autocast(self.model.device, is_on=self._is_bf16):
            with self.model.watched(observe):
                logits = self.model.logits(inputs).flatten(0, 1)
            wanted = self._wanted(inputs)
            goal, loss = PredictionLoss.apply(  # type: ignore[no-untyped-call]
                logits, targets, wanted, self.recipe.distill
            )
            if weight:
                goal = goal + density.mean() * weight
        share = len(rows) / self.recipe.rows
        (goal * share).backward()
        return float(loss) * share

    @torch.no_grad()
    def _wanted(self, inputs: Tensor) -> Tensor | None:
        """Logits of the teacher; None if it has no say."""
        if self._teacher is None or not self.recipe.distill:
            return None
        return self._teacher.logits(inputs).flatten(0, 1)

    def _check(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        self._optimizer.zero_grad(set_to_none=False)
        self.model.network.eval()
        self.save()
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"its gradient is {norm}"
        raise NumericsError(
            f"step {self.step + 1} of {self.recipe.steps}: {what}; the weights of step {self.step} "
            f"are kept in {self._folder}",
            remedy="start again in another folder with a lower {learning_rate}",
        )


class _ZeroCount:
    """Counts zeros in the first row of each pass: enough to watch, and nearly free."""

    def __init__(self, num_layers: int) -> None:
        self._nonzero: list[int | Tensor] = [0] * num_layers
        self._total = [0] * num_layers

    def __call__(self, layer: int, neurons: Tensor) -> None:
        self._nonzero[layer] += torch.count_nonzero(neurons[0].detach())
        self._total[layer] += neurons[0].numel()

    def shares(self) -> list[float]:
        """Share of zeros of each layer."""
        return [
            1.0 - int(nonzero) / max(1, total)
            for nonzero, total in zip(self._nonzero, self._total, strict=True)
        ]


def _make_optimizer(model: SparseModel, recipe: Recipe) -> torch.optim.Optimizer:
    parameters = list(model.network.parameters())
    matrices = [each for each in parameters if each.ndim > 1]
    norms = [each for each in parameters if each.ndim <= 1]
    groups: list[dict[str, object]] = [{"params": matrices}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups,
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def fingerprint(model: SparseModel) -> str:
    """An identity of a model before its first step: activation, shapes, some weights."""
    found = hashlib.sha256(model.activation.encode())
    for name, parameter in model.network.named_parameters():
        found.update(f"{name} {tuple(parameter.shape)}".encode())
        values = parameter.detach().flatten()
        samples = values[:: max(1, len(values) // 256)]
        found.update(samples.float().cpu().numpy().tobytes())
    return found.hexdigest()


def _on_cpu(value: object) -> object:
    """The same dicts and lists, with all tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(each) for key, each in value.items()}
    return [_on_cpu(each) for each in value] if isinstance(value, list) else value
