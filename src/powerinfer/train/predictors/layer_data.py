"""The training data of one layer's predictor."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.train.predictors.sizes import PredictorSizes
from powerinfer.values import ByteArray, FloatArray

__all__ = ["ExpertArray", "HalfArray", "LayerData", "MeasureError"]

HalfArray = npt.NDArray[np.float16]
ExpertArray = npt.NDArray[np.int16]

# Tokens that thresholds are fitted to, at most.
_MOST_TUNED = 1 << 15

MeasureError = Callable[[HalfArray, HalfArray], float]


@dataclass(frozen=True, slots=True, eq=False)
class LayerData:
    """Inputs of a layer's predictor, and which neurons fired for them.

    The large arrays may be memory maps: they are read in blocks of neighbouring tokens. Of a layer
    with experts, only the neurons of those that a token was given to are known.

    Attributes:
        inputs: f16[num_tokens, width], inputs of the predictor divided by `scale`.
        fired: u8[num_tokens, num_used * ceil(expert_size / 8)], a bit for each neuron, the lowest
            first; in a dense FFN u8[num_tokens, ceil(num_neurons / 8)].
        num_train: tokens to train on, the first ones; the others are held out.
        weights: f32[num_neurons], the cost of missing a neuron that fires: mean square of what it
            then adds to the FFN's output.
        scale: a power of two, so that residual streams beyond f16 fit.
        ffn_error: measures the relative error of the FFN's output with matrices fc1 and fc2 as
            stored; None if an estimate from `weights` is enough, which is no goal.
        experts: i16[num_tokens, num_used], those of each token, rising; None in a dense FFN.
    """

    number: int
    inputs: HalfArray
    fired: ByteArray
    num_neurons: int
    num_train: int
    weights: FloatArray
    scale: float = 1.0
    ffn_error: MeasureError | None = None
    experts: ExpertArray | None = None
    num_experts: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens of training and held-out text together."""
        return len(self.inputs)

    @property
    def num_learned(self) -> int:
        """The first tokens of the training text, which weights are fitted to.

        Thresholds are fitted to the rest of it, where the network is no better than it will be on
        other text.
        """
        return self.num_train - min(max(1, self.num_train // 10), _MOST_TUNED)

    @property
    def hidden_size(self) -> int:
        """Numbers that the predictor sees of a token."""
        return int(self.inputs.shape[1])

    @property
    def sizes(self) -> PredictorSizes:
        """Sizes of a predictor for this layer."""
        num_used = 1 if self.experts is None else int(self.experts.shape[1])
        expert_size = self.num_neurons // self.num_experts
        return PredictorSizes(self.hidden_size, expert_size, self.num_experts, num_used)
