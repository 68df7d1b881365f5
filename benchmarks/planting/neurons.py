"""Plants the FFN of one layer: neurons with given firing rates, and a predictor that knows most.

With u the FFN's normalised input, mu its mean and t = u . mu / |mu|^2, which is near 1:

* row_i = A_i P + E_i - b_i mu / |mu|^2. P is shared by the layer, A and E are random, E has the
  share `noise` of the variance and is what the predictor cannot see. b_i is fitted on calibration
  tokens so that row_i . u (+ bias) is above zero with the wanted probability.
* fc1 = [P; -P; c mu / |mu|], so relu(fc1 u) holds P u in two halves, and fc2 = [A, -A, shift]: the
  score is the pre-activation without E. The shift is fitted to the encoded matrices so that scores
  are above pre-activations by `margin` on the average, towards recall.
* The predictor's input is not normalised. RMSNorm is x * weight / size, LayerNorm subtracts the
  mean too: both are linear up to a positive factor, which no sign of a score depends on, so they
  are folded into fc1.
* dReLU: gate and up are planted, with correlated A; the predictor knows up's, whose threshold is
  the higher one.
"""

import numpy as np
import numpy.typing as npt

from planting.random_rows import ByteRows, FloatRows, Workshop
from planting.rates import DRELU_CORRELATION, FiringRates, firing_rates, thresholds
from planting.recipe import FFNInput, Knobs, PlantedFFN
from planting.shapes import PlantedShape

__all__ = ["plant"]

# The c above: small, so that the shifts in fc2 are as large as its other weights, and a block
# format rounds them no worse.
_MEAN_UNIT = 0.25


def plant(
    workshop: Workshop, layer: int, shape: PlantedShape, knobs: Knobs, given: FFNInput
) -> PlantedFFN:
    """Make the FFN and the predictor of one layer and run both over the given tokens."""
    return _Planter(workshop, layer, shape, knobs, given).run()


class _Planter:
    """The steps of `plant`, and what they share."""

    def __init__(
        self, workshop: Workshop, layer: int, shape: PlantedShape, knobs: Knobs, given: FFNInput
    ) -> None:
        self._workshop, self._layer, self._shape, self._knobs = workshop, layer, shape, knobs
        self._given = given
        self._format = knobs.weight_format
        hidden, neurons = shape.hidden_size, shape.intermediate_size
        self._mean = given.normed[: given.calibration].mean(axis=0)
        self._energy = float(self._mean @ self._mean)
        tilt = given.normed[: given.calibration] @ self._mean / np.float32(self._energy)
        self._tilt = np.maximum(tilt, np.float32(0.2))[:, None]
        self._num_directions = (knobs.rank - 1) // 2
        self._shared = workshop.normal((layer, 10), self._num_directions, hidden, hidden**-0.5)
        self._rates: FiringRates = firing_rates(
            neurons,
            knobs.density,
            knobs.exponent,
            workshop.generator(layer, 11),
            is_drelu=shape.is_drelu,
        )
        self._tensors: dict[str, ByteRows] = {}
        held_out = len(given.normed) - given.calibration
        self._fires = np.empty((held_out, neurons), np.bool_)
        self._gate_fires = np.empty((held_out, neurons), np.bool_)
        self._predicted = np.empty((held_out, neurons), np.bool_)
        self._active = np.empty((len(given.normed), neurons), np.float32)

    def run(self) -> PlantedFFN:
        """Predictor's first matrix, the neurons, then down with the size that fits."""
        hidden, neurons = self._shape.hidden_size, self._shape.intermediate_size
        self._hidden = self._plant_fc1()
        names = ("ffn_gate", "ffn_up") if self._shape.is_gated else ("ffn_up",)
        for name in names:
            self._tensors[f"{name}.weight"] = np.empty(
                (neurons, self._format.num_bytes(hidden)), np.uint8
            )
        fc2_bytes = self._knobs.predictor_format.num_bytes(self._knobs.rank)
        self._tensors["fc2.weight"] = np.empty((neurons, fc2_bytes), np.uint8)
        self._bias = np.zeros(neurons, np.float32)
        if self._shape.architecture == "opt":
            self._bias = self._workshop.generator(self._layer, 12).standard_normal(
                neurons, np.float32
            ) * np.float32(0.05)
            self._tensors["ffn_up.bias"] = self._bias.view(np.uint8)
        for _ in self._workshop.over_blocks(neurons, self._plant_block):
            pass
        output, error = self._plant_down()
        return PlantedFFN(
            self._tensors, output, self._fires, self._gate_fires, self._predicted, error
        )

    def _plant_fc1(self) -> FloatRows:
        """Make fc1; returns relu(fc1 x) of all tokens, for inputs of the norm's size."""
        knobs, given = self._knobs, self._given
        spare = knobs.rank - 2 * self._num_directions - 1
        # Hidden units that nothing reads still have ordinary rows, so that none can be skipped.
        unused = self._workshop.normal(
            (self._layer, 13), spare, self._shape.hidden_size, self._shape.hidden_size**-0.5
        )
        direction = self._mean[None] * np.float32(_MEAN_UNIT / self._energy**0.5)
        rows = np.concatenate([self._shared, -self._shared, direction, unused]) * given.norm
        if self._shape.is_layer_norm:
            rows -= rows.mean(axis=1, keepdims=True)
        chosen = knobs.predictor_format
        self._tensors["fc1.weight"] = chosen.encode(np.ascontiguousarray(rows, np.float32))
        decoded = chosen.decode(self._tensors["fc1.weight"])
        hidden: FloatRows = np.maximum(given.raw @ decoded.T, 0)
        # The norm divides by this; the predictor does not, which changes no sign.
        middle = given.raw.mean(axis=1, keepdims=True) if self._shape.is_layer_norm else 0
        size = np.linalg.norm((given.raw - middle) * given.norm, axis=1, keepdims=True)
        hidden *= np.linalg.norm(given.normed, axis=1, keepdims=True) / size
        return hidden

    def _plant_block(self, number: int, block: slice) -> None:
        """Neurons `block`: their rows in every matrix but down, and what they do."""
        count, calibration = block.stop - block.start, self._given.calibration
        std = ((1 - self._knobs.noise) / self._num_directions) ** 0.5
        mixing = self._workshop.normal((self._layer, 14, number), count, self._num_directions, std)
        if self._shape.is_drelu:
            gate = self._branch("ffn_gate", number, block, mixing, self._rates.gate)
            other = self._workshop.normal(
                (self._layer, 15, number), count, self._num_directions, std
            )
            mixing *= np.float32(DRELU_CORRELATION)
            mixing += np.float32((1 - DRELU_CORRELATION**2) ** 0.5) * other
            rarest = self._branch("ffn_up", number, block, mixing, self._rates.up)
            active = np.maximum(gate, 0) * np.maximum(rarest, 0)
        elif self._shape.is_gated:
            rarest = gate = self._branch("ffn_gate", number, block, mixing, self._rates.gate)
            active = np.maximum(gate, 0) * self._plain_branch(number, block)
        else:
            rarest = gate = self._branch("ffn_up", number, block, mixing, self._rates.gate)
            active = np.maximum(gate, 0)
        self._active[:, block] = active
        self._gate_fires[:, block] = gate[calibration:] > 0
        self._fires[:, block] = active[calibration:] != 0
        self._plant_fc2(block, mixing, rarest[:calibration])

    def _branch(
        self,
        name: str,
        number: int,
        block: slice,
        mixing: FloatRows,
        rates: npt.NDArray[np.float64],
    ) -> FloatRows:
        """Rows of one matrix; returns pre-activations."""
        given, hidden = self._given, self._shape.hidden_size
        is_gate = 0 if name == "ffn_gate" else 1
        rows = self._workshop.normal(
            (self._layer, 16 + is_gate, number),
            len(mixing),
            hidden,
            (self._knobs.noise / hidden) ** 0.5,
        )
        rows += mixing @ self._shared
        bias = self._bias[block]
        ratio = (given.normed[: given.calibration] @ rows.T + bias) / self._tilt
        offset = ratio.mean(axis=0) + ratio.std(axis=0) * thresholds(
            rates[block], given.calibration
        )
        rows -= np.outer(offset, self._mean / np.float32(self._energy))
        self._tensors[f"{name}.weight"][block] = self._format.encode(rows)
        rows = self._format.decode(self._tensors[f"{name}.weight"][block])
        product: FloatRows = given.normed @ rows.T + bias
        return product

    def _plain_branch(self, number: int, block: slice) -> FloatRows:
        """Up of a ReGLU: nothing planted."""
        hidden = self._shape.hidden_size
        rows = self._workshop.normal(
            (self._layer, 17, number), block.stop - block.start, hidden, hidden**-0.5
        )
        encoded = self._format.encode(rows)
        self._tensors["ffn_up.weight"][block] = encoded
        product: FloatRows = self._given.normed @ self._format.decode(encoded).T
        return product

    def _plant_fc2(self, block: slice, mixing: FloatRows, wanted: FloatRows) -> None:
        """Rows of fc2 for pre-activations `wanted` of the calibration tokens."""
        knobs, num_directions, calibration = (
            self._knobs,
            self._num_directions,
            self._given.calibration,
        )
        rows = np.zeros((len(mixing), knobs.rank), np.float32)
        rows[:, :num_directions], rows[:, num_directions : 2 * num_directions] = mixing, -mixing
        target = wanted.mean(axis=0) + np.float32(knobs.margin) * wanted.std(axis=0)
        unit = self._hidden[:calibration, 2 * num_directions].mean()
        # The second time corrects what encoding did to the row.
        for _ in range(2):
            decoded = knobs.predictor_format.decode(knobs.predictor_format.encode(rows))
            rows[:, 2 * num_directions] += (
                target - decoded @ self._hidden[:calibration].mean(axis=0)
            ) / unit
        encoded = knobs.predictor_format.encode(rows)
        self._tensors["fc2.weight"][block] = encoded
        scores = self._hidden[calibration:] @ knobs.predictor_format.decode(encoded).T
        self._predicted[:, block] = scores >= 0

    def _plant_down(self) -> tuple[FloatRows, float]:
        """Rows of the transposed down projection; returns the output and the predictor's error."""
        given, hidden = self._given, self._shape.hidden_size
        stream = float((given.raw[: given.calibration] ** 2).mean()) ** 0.5
        size = float((self._active[: given.calibration] ** 2).sum(axis=1).mean()) ** 0.5
        std = self._knobs.branch_size * stream / max(size, 1e-6)
        encoded = np.empty(
            (self._shape.intermediate_size, self._format.num_bytes(hidden)), np.uint8
        )
        missed = np.where(self._predicted, 0, self._active[given.calibration :])

        def make(number: int, block: slice) -> tuple[FloatRows, FloatRows]:
            count = block.stop - block.start
            encoded[block] = self._format.encode(
                self._workshop.normal((self._layer, 18, number), count, hidden, std)
            )
            rows = self._format.decode(encoded[block])
            return self._active[:, block] @ rows, missed[:, block] @ rows

        output = np.zeros_like(given.normed)
        lost = np.zeros_like(given.normed[given.calibration :])
        for part, lost_part in self._workshop.over_blocks(len(encoded), make):
            output += part
            lost += lost_part
        self._tensors["ffn_down_t.weight"] = encoded
        kept = np.linalg.norm(output[given.calibration :])
        return output, float(np.linalg.norm(lost) / max(float(kept), 1e-12))
