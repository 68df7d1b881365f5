"""Steps that pause between layers, so that others can run in between."""

from dataclasses import dataclass
from typing import cast

from powerinfer.models.blocks import scale_logits
from powerinfer.models.scales import Scales
from powerinfer.ops.backend import Activations
from powerinfer.ops.protocol import LayerProgram
from powerinfer.values import Batch, FloatArray

__all__ = ["PausedStep"]


@dataclass(slots=True)
class PausedStep:
    """A step that can stop between layers. After an exception it cannot be resumed.

    Attributes:
        batch: tokens of the step; their blocks stay allocated until it ends.
        scales: of the logits; None if the rows are hidden states.
        embedded: f32[num_tokens, hidden_size], start of the residual stream.
    """

    program: LayerProgram[Activations]
    batch: Batch
    scales: Scales | None
    embedded: FloatArray
    num_done: int = 0
    _x: Activations | None = None

    def run(self, num_layers: int) -> FloatArray | None:
        """Run the next layers.

        Args:
            num_layers: at least 1; limited to the layers left.

        Returns:
            The step's f32[num_selected, columns] rows after the last layer; None before it.
        """
        first, last = self.num_done, min(self.num_done + num_layers, self.program.num_layers)
        x = self.embedded if self._x is None else self._x
        # Nobody wants the output of a stream without rows.
        self._x = self.program.layers(x, self.batch, first, last) if len(x) else x
        self.num_done = last
        if last < self.program.num_layers:
            return None
        rows = cast("FloatArray", self.program.end(self._x))
        return rows if self.scales is None else scale_logits(self.scales, rows)
