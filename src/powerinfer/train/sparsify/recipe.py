"""The recipe of a training run, as one value."""

import math
from dataclasses import dataclass, fields

from powerinfer.errors import UnsupportedError

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, apart from model, text and machine.

    Attributes:
        tokens: Tokens to train on; rounded up to whole steps.
        seq_len: Tokens that a training row predicts.
        batch_tokens: Tokens of one optimizer step, rounded down to whole rows, at least one.
        learning_rate: Highest rate of AdamW.
        min_rate: Learning rate of the last step, where the cosine ends.
        warmup_share: Share of the steps over which the rate rises from zero.
        weight_decay: Decoupled; norms have none.
        distill: Weight of the divergence from the teacher's predictions; 0 for none.
        density_penalty: Weight of `powerinfer.train.density.DensityPenalty`; 0 for none.
        seed: Decides the order of the rows.
        max_gradient: Gradients are scaled down to this norm.
        pass_tokens: Tokens of one forward and backward pass, fewer if the vocabulary is large; a
            step makes several.
    """

    tokens: int
    seq_len: int = 512
    batch_tokens: int = 16384
    learning_rate: float = 5e-5
    min_rate: float = 5e-6
    warmup_share: float = 0.02
    weight_decay: float = 0.1
    distill: float = 0.0
    density_penalty: float = 0.0
    seed: int = 1
    max_gradient: float = 1.0
    pass_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("tokens", "seq_len", "batch_tokens", "pass_tokens", "learning_rate"):
            if not getattr(self, name) > 0:
                raise UnsupportedError(f"{name} is {getattr(self, name)}; expected above 0")
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise UnsupportedError(f"{field.name} is {value}; expected at least 0")

    @property
    def rows(self) -> int:
        """Rows of one step."""
        return max(1, self.batch_tokens // self.seq_len)

    @property
    def pass_rows(self) -> int:
        """Rows of one pass, at most."""
        return max(1, self.pass_tokens // self.seq_len)

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.rows * self.seq_len

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return -(-self.tokens // self.step_tokens)

    def rate(self, step: int) -> float:
        """Learning rate of a step (from 0): a rise from zero, then half a cosine."""
        warmup = self.warmup_share * self.steps
        if step + 1 < warmup:
            return self.learning_rate * (step + 1) / warmup
        done = (step + 1 - warmup) / max(1.0, self.steps - warmup)
        share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
        return self.min_rate + (self.learning_rate - self.min_rate) * share
