"""What a training run does, as one value: its defaults are the recipe of the shipped model."""

from dataclasses import dataclass, field

from recipes.stories.corpus import Source
from recipes.stories.story_model import StoryConfig


@dataclass(frozen=True)
class Stage:
    """A stretch of the run with one mixture of texts and one sequence length.

    Attributes:
        until: Share of all steps after which the stage ends.
        seq_len: Tokens in a training row.
        shares: Share of the rows drawn from each source, by source name.
    """

    until: float
    seq_len: int
    shares: dict[str, float]


def _sources() -> tuple[Source, ...]:
    return (
        Source("tinystories", held_out=150),
        Source("children_books"),
        Source("classic_easy", max_bytes=12_000_000),
    )


def _stages() -> tuple[Stage, ...]:
    broad = {"tinystories": 0.50, "children_books": 0.35, "classic_easy": 0.15}
    return (
        Stage(until=0.307, seq_len=256, shares=broad),
        Stage(until=0.88, seq_len=256, shares={"tinystories": 0.85, "children_books": 0.15}),
        Stage(until=1.00, seq_len=512, shares={"tinystories": 0.90, "children_books": 0.10}),
    )


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, apart from the texts and the thread count.

    Attributes:
        model: Sizes of the model.
        sources: Texts to read; the first one's held-out documents measure progress.
        stages: Mixture and sequence length over the run, in order.
        steps: Optimizer steps.
        step_tokens: Tokens of one step.
        pass_tokens: Tokens of one forward and backward pass; a step makes several.
        warmup_steps: Steps over which the learning rates rise from zero.
        decay_from: Share of the steps after which the learning rates fall linearly.
        final_rate: Share of the learning rates left at the last step.
        matrix_rate: Learning rate of the layers' matrices, trained with Muon.
        vector_rate: Learning rate of embedding and norms, trained with AdamW.
        weight_decay: Decoupled weight decay of both optimizers; norms have none.
        max_gradient: Gradients are scaled down to this norm.
        sparsity_from: Share of the steps after which dense FFN activity is penalised.
        sparsity_weight: Weight of that penalty, `powerinfer.train.density.DensityPenalty`.
        seed: Decides initial weights, order of the texts and dropout.
    """

    model: StoryConfig = field(default_factory=StoryConfig)
    sources: tuple[Source, ...] = field(default_factory=_sources)
    stages: tuple[Stage, ...] = field(default_factory=_stages)
    steps: int = 3100
    step_tokens: int = 4096
    pass_tokens: int = 4096
    warmup_steps: int = 100
    decay_from: float = 0.6
    final_rate: float = 0.02
    matrix_rate: float = 0.015
    vector_rate: float = 0.002
    weight_decay: float = 0.1
    max_gradient: float = 1.0
    sparsity_from: float = 0.5
    sparsity_weight: float = 0.5
    seed: int = 20

    def stage(self, step: int) -> Stage:
        """The stage that step (from 0) belongs to."""
        for stage in self.stages:
            if step < stage.until * self.steps:
                return stage
        return self.stages[-1]

    def density_weight(self, step: int) -> float:
        """Weight of the density penalty at a step."""
        return self.sparsity_weight if step >= self.sparsity_from * self.steps else 0.0

    def rate(self, step: int) -> float:
        """Factor on both learning rates at a step: rise, plateau, linear fall."""
        rise = (step + 1) / max(1, self.warmup_steps)
        fall_steps = max(1.0, (1 - self.decay_from) * self.steps)
        fallen = max(0.0, (step + 1 - self.decay_from * self.steps) / fall_steps)
        return min(1.0, rise, 1 - (1 - self.final_rate) * fallen)
