"""What a predictor kind is: a file in ``kinds/`` exports one, others come from outside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from powerinfer.ops.some_backend import SomeOps
from powerinfer.predictors.predictor import AsksNeurons, LayerSource, PredictorInput, Scorer

__all__ = ["PredictorKind"]


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """A method that predicts which neurons fire.

    Exactly one of `scorer` and `active_ids` is given by a kind that predicts; `exact` gives none.

    Attributes:
        name: what users call it; of a file in ``kinds/`` its key.
        summary: one line for users.
        variants: what may follow the name after a colon, the default first ('' for nothing); empty
            where nothing may.
        scorer: ``scorer(ops, source, variant)`` scores neurons; the FFN call runs it itself.
        active_ids: ``active_ids(ops, source, variant)`` returns a function from f32[num_tokens,
            hidden_size] (of `input`) and marks (bool[num_tokens], which tokens are prompt, or None)
            to the neurons of each token; the FFN is then two calls.
        input: what `active_ids` looks at.
        default_threshold: for models without a calibration.
        cascade_bits: bits per weight that each variant reads, which orders the parts of a cascade;
            empty for a kind that cannot be one.
    """

    name: str
    summary: str
    variants: tuple[str, ...] = ()
    scorer: Callable[[SomeOps, LayerSource, str], Scorer] | None = None
    active_ids: Callable[[SomeOps, LayerSource, str], AsksNeurons] | None = None
    input: PredictorInput = PredictorInput.FFN_INPUT
    default_threshold: Callable[[LayerSource], float] = lambda _source: 0.0
    cascade_bits: Mapping[str, int] = field(default_factory=dict)
