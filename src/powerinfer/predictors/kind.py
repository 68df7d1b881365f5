"""The type of a predictor kind: files in ``kinds/`` export one, others come from outside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from powerinfer.ops.backend import Backend
from powerinfer.predictors.predictor import AsksNeurons, LayerSource, PredictorInput, Scorer

__all__ = ["THRESHOLD", "PredictorKind"]

THRESHOLD = "threshold"
"""Name of thresholds on activations among the kinds of a calibration; no predictor has it."""


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """A method that predicts which neurons fire.

    A kind has exactly one of `scorer` and `active_ids`; only `exact` has neither.

    Attributes:
        name: name for users; in ``kinds/`` equal to the file name.
        summary: one line for users.
        variants: suffixes after the name and a colon, the default first ('' for no suffix); empty
            if the kind takes none.
        scorer: ``scorer(ops, source, variant)`` scores neurons; runs inside the FFN call.
        active_ids: ``active_ids(ops, source, variant)`` returns a function from f32[num_tokens,
            hidden_size] (of `input`) and marks (bool[num_tokens], which tokens are prompt, or None)
            to the neurons of each token; the FFN then takes two calls.
        input: input of `active_ids`.
        default_threshold: threshold for models without a calibration.
        cascade_bits: bits per weight that each variant reads, which orders the parts of a cascade;
            empty for a kind that cannot be part of one.
    """

    name: str
    summary: str
    variants: tuple[str, ...] = ()
    scorer: Callable[[Backend, LayerSource, str], Scorer] | None = None
    active_ids: Callable[[Backend, LayerSource, str], AsksNeurons] | None = None
    input: PredictorInput = PredictorInput.FFN_INPUT
    default_threshold: Callable[[LayerSource], float] = lambda _source: 0.0
    cascade_bits: Mapping[str, int] = field(default_factory=dict)
