"""What one layer's predictor is trained on."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.values import ByteArray, FloatArray

__all__ = ["HalfArray", "LayerData"]

HalfArray = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class LayerData:
    """Inputs of a layer's predictor, and which neurons fired for them.

    The large arrays may be memory maps: they are read in blocks of neighbouring tokens.

    Attributes:
        number: of the layer, from 0.
        inputs: f16[num_tokens, hidden_size], what the predictor sees divided by `scale`.
        fired: u8[num_tokens, ceil(num_neurons / 8)], a bit for each neuron, the lowest first.
        num_neurons: of the layer.
        num_train: tokens to train on, the first ones; those from there on are held out.
        weights: f32[num_neurons], what it costs to miss a neuron that fires: mean square of what it
            then adds to the FFN's output.
        scale: a power of two, so that residual streams beyond f16 fit.
    """

    number: int
    inputs: HalfArray
    fired: ByteArray
    num_neurons: int
    num_train: int
    weights: FloatArray
    scale: float = 1.0

    @property
    def num_tokens(self) -> int:
        """Of training and held-out text together."""
        return len(self.inputs)

    @property
    def hidden_size(self) -> int:
        """Numbers the predictor sees of a token."""
        return int(self.inputs.shape[1])
