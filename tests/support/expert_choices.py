"""Which experts the tokens of a model chose, to compare only what followed from equal choices.

Rounding (int8 activations, another order of a sum) moves logits of a router a little. Where two of
them are nearly equal another expert is chosen, and everything behind is another computation.
"""

import numpy as np
import numpy.typing as npt

from powerinfer.models import Model
from powerinfer.models.blocks import Stage
from powerinfer.values import BoolArray, FloatArray

__all__ = ["ChoiceObserver", "num_agreeing"]


class ChoiceObserver:
    """An observer that remembers the ids of the experts of each layer's tokens."""

    def __init__(self, model: Model, is_prompt: BoolArray | None = None) -> None:
        self._model = model
        self._is_prompt = is_prompt
        self.ids: dict[int, npt.NDArray[np.int32]] = {}

    def __call__(self, stage: Stage, number: int, values: FloatArray) -> None:
        """Route what the router of a layer sees: the FFN's input, or an input of its own."""
        layer = self._model.weights.layers[number]
        ffn = layer.own_ffn
        # Experts in a latent space have another input than their router.
        stages = ("router input",) if layer.latent is not None else ("FFN input", "router input")
        if ffn is not None and ffn.router is not None and stage.value in stages:
            self.ids[number], _ = self._model.ops.route(values, ffn, self._is_prompt)


def num_agreeing(first: ChoiceObserver, second: ChoiceObserver, num_tokens: int) -> int:
    """How many leading tokens of a sequence chose the same experts in all layers.

    Later ones saw keys and values of another computation.
    """
    agree = np.ones(num_tokens, bool)
    for number, ids in first.ids.items():
        agree &= (ids == second.ids[number]).all(axis=1)
    return int(np.argmin(agree)) if not agree.all() else num_tokens
