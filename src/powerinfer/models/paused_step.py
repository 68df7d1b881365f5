"""A step that runs some layers at a time, so that others can go between."""

from dataclasses import dataclass
from typing import cast

from powerinfer.models.scales import Scales
from powerinfer.ops.protocol import LayerProgram
from powerinfer.ops.some_backend import Activations
from powerinfer.values import Batch, FloatArray

__all__ = ["PausedStep"]


@dataclass(slots=True)
class PausedStep:
    """What is left of a step; of one that raised nothing may run again.

    Attributes:
        program: the layers and what follows them.
        batch: tokens of the step; their blocks stay allocated until it ends.
        scales: of its logits.
        embedded: f32[num_tokens, hidden_size], where it begins.
        num_done: layers that ran.
    """

    program: LayerProgram[Activations]
    batch: Batch
    scales: Scales
    embedded: FloatArray
    num_done: int = 0
    _x: Activations | None = None

    @property
    def num_left(self) -> int:
        """Layers that are to run."""
        return self.program.num_layers - self.num_done

    def run(self, num_layers: int) -> FloatArray | None:
        """Run the next layers.

        Args:
            num_layers: at least one; more than are left are as many as are left.

        Returns:
            f32[num_selected, vocab_size] logits behind the last layer; None before it.
        """
        first, last = self.num_done, min(self.num_done + num_layers, self.program.num_layers)
        x = self.embedded if self._x is None else self._x
        # A stream without rows is wanted by nobody.
        self._x = self.program.layers(x, self.batch, first, last) if len(x) else x
        self.num_done = last
        if self.num_left:
            return None
        return self.scales.of_logits(cast("FloatArray", self.program.end(self._x)))
