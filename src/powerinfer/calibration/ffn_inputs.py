"""The inputs of a layer's FFN, collected from the stages that observers see."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.models.blocks import Stage
from powerinfer.values import FloatArray

__all__ = ["FFNInputs", "InputCollector"]


@dataclass(frozen=True, slots=True)
class FFNInputs:
    """Inputs of one layer's FFN, predictor and router; f32[num_tokens, hidden_size] each.

    Attributes:
        router: input of the router, if that is not `x`; else None.
    """

    x: FloatArray
    raw: FloatArray
    router: FloatArray | None = None

    def rows(self, tokens: npt.NDArray[np.bool_] | slice) -> "FFNInputs":
        """The same for some of the tokens, in arrays of their own."""
        x, raw = (np.ascontiguousarray(values[tokens]) for values in (self.x, self.raw))
        router = None if self.router is None else np.ascontiguousarray(self.router[tokens])
        return FFNInputs(x, raw, router)


class InputCollector:
    """Collects the inputs of a layer over its stages."""

    def __init__(self) -> None:
        self._x: FloatArray | None = None
        self._router: FloatArray | None = None

    def see(self, stage: Stage, x: FloatArray) -> FFNInputs | None:
        """Take a stage; return the inputs, not copied, with the last of them."""
        if stage is Stage.FFN_INPUT:
            self._x, self._router = x, None
        elif stage is Stage.ROUTER_INPUT:
            self._router = x
        elif stage is Stage.PREDICTOR_INPUT and self._x is not None:
            found, self._x = FFNInputs(self._x, x, self._router), None
            return found
        return None
