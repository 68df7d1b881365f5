"""Optimizer steps that end with the same bits however often they are interrupted."""

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from powerinfer.errors import NumericsError
from powerinfer.train.autocast import compute_repeatably, has_bf16
from powerinfer.train.checkpoint import load_checkpoint, save_checkpoint
from powerinfer.train.sparsify.log import StepFigures, TrainingLog
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.rows import TokenIds, identity_of, row_numbers, rows_of

__all__ = ["ResumableSteps", "StepFiles", "ZeroCount"]


@dataclass(frozen=True)
class StepFiles:
    """Where steps keep their state and log, and the option that says how far each goes."""

    folder: Path
    checkpoint: str
    log: str
    rate_option: str


class ResumableSteps(ABC):
    """Steps of AdamW; two runs that reach the same step on one machine are equal.

    Attributes:
        seconds: time spent in the steps so far, all sessions together.
    """

    def __init__(
        self, trained: nn.Module, identity: str, tokens: TokenIds, recipe: Recipe, files: StepFiles
    ) -> None:
        """Begin, or resume what `files` holds.

        Args:
            trained: what the steps change, as before the first.
            identity: of everything else that decides the result.
        """
        self.recipe, self._trained, self._files = recipe, trained, files
        self._rows = rows_of(tokens, recipe.seq_len)
        self._identity = f"{recipe!r} {identity} {identity_of(tokens)}"
        self._optimizer = _make_optimizer(trained, recipe)
        self._device = next(trained.parameters()).device
        self._is_bf16 = has_bf16(self._device)
        compute_repeatably(self._device)
        self._log = TrainingLog(files.folder, files.log)
        self.step = 0
        self.seconds = 0.0
        files.folder.mkdir(parents=True, exist_ok=True)
        self._resume()

    @property
    def is_done(self) -> bool:
        """All steps are made."""
        return self.step >= self.recipe.steps

    def _resume(self) -> None:
        state = load_checkpoint(self._files.folder / self._files.checkpoint, self._identity)
        if state is None:
            self._log.restore([], 0)
            return
        self._trained.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self._log.restore(state["log"], self.step)

    def save(self) -> None:
        """Write the state, atomically."""
        state = {
            "model": _on_cpu(self._trained.state_dict()),
            "optimizer": _on_cpu(self._optimizer.state_dict()),
            "log": self._log.state(),
            "step": self.step,
            "seconds": self.seconds,
        }
        save_checkpoint(self._files.folder / self._files.checkpoint, self._identity, state)

    def advance(self) -> StepFigures:
        """Make one optimizer step.

        Raises:
            NumericsError: the loss or its gradient is not finite; the weights stay as they were
                before the step, and are saved.
        """
        began = time.monotonic()
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step)
        self._trained.train()
        loss, zeros = self._backward_all()
        norm = self._clip()
        self._check(loss, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        self._trained.eval()
        self.step += 1
        took = time.monotonic() - began
        self.seconds += took
        figures = StepFigures(self.step, loss, zeros, self.recipe.step_tokens / took)
        self._log.add(figures, is_last=self.is_done)
        return figures

    def _backward_all(self) -> tuple[float, list[float]]:
        """Add the gradients of a step; return its loss and the zeros of each layer."""
        rows = self._rows[row_numbers(self.step, len(self._rows), self.recipe)]
        zeros, loss, size = ZeroCount(), 0.0, self.recipe.pass_rows
        for first in range(0, len(rows), size):
            part = torch.from_numpy(rows[first : first + size].astype(np.int64)).to(self._device)
            loss += self._backward(part, len(part) / len(rows), zeros)
        return loss, zeros.shares()

    @abstractmethod
    def _backward(self, rows: Tensor, share: float, zeros: "ZeroCount") -> float:
        """Add the gradient of a share of a step's rows; return their part of its loss."""

    def _clip(self) -> float:
        """Scale the gradient down to the recipe's norm; return the norm that it had."""
        limit = self.recipe.max_gradient
        return float(torch.nn.utils.clip_grad_norm_(self._trained.parameters(), limit))

    def _check(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        self._optimizer.zero_grad(set_to_none=False)
        self._trained.eval()
        self.save()
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"its gradient is {norm}"
        raise NumericsError(
            f"step {self.step + 1} of {self.recipe.steps}: {what}; the weights of step {self.step} "
            f"are kept in {self._files.folder}",
            remedy=f"start again in another folder with a lower {{{self._files.rate_option}}}",
        )


class ZeroCount:
    """Counts zeros in the first row of each pass: enough to watch, and nearly free."""

    def __init__(self) -> None:
        self._nonzero: dict[int, int | Tensor] = {}
        self._total: dict[int, int] = {}

    def __call__(self, layer: int, neurons: Tensor) -> None:
        """Observe neurons[batch, seq_len, intermediate_size] of one layer."""
        seen = neurons[0].detach()
        self._nonzero[layer] = self._nonzero.get(layer, 0) + torch.count_nonzero(seen)
        self._total[layer] = self._total.get(layer, 0) + seen.numel()

    def shares(self) -> list[float]:
        """Share of zeros of each layer."""
        return [1.0 - int(self._nonzero[layer]) / self._total[layer] for layer in self._nonzero]


def _make_optimizer(trained: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    parameters = list(trained.parameters())
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


def _on_cpu(value: object) -> object:
    """The same dicts and lists, with all tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(each) for key, each in value.items()}
    return [_on_cpu(each) for each in value] if isinstance(value, list) else value
