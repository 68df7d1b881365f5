"""The matrices of a trained network as a file stores them, in F16 and with its one threshold."""

import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.train.predictors.goal import THRESHOLD
from powerinfer.train.predictors.network import Network

__all__ = ["stored"]


def stored(network: Network, input_scale: float, thresholds: Tensor, layer: int) -> Network:
    """Matrices for inputs as the model has them, whose neurons pass from `THRESHOLD` on.

    Args:
        network: for scaled inputs.
        input_scale: what the model's inputs were multiplied by.
        thresholds: f32[num_neurons], negative or -infinity, for always.
        layer: number that an error names.

    Returns:
        f16 matrices.

    Raises:
        NumericsError: a weight is beyond what F16 can hold.
    """
    fc1 = network.fc1 * input_scale
    fc2 = network.fc2 * (THRESHOLD / thresholds)[:, None]
    # A unit's row of fc1 may be made larger if its column of fc2 is made smaller: where both are
    # equally large, both are farthest from the limits of F16. Powers of two round nothing.
    first, second = fc1.abs().amax(1), fc2.abs().amax(0)
    is_alive = (first > 0) & (second > 0)
    ratio = torch.where(is_alive, second / first.clamp_min(1e-30), torch.ones_like(first))
    factor = torch.exp2((torch.log2(ratio) / 2).round())
    # Adding 0 leaves no negative zeros.
    halves = Network((fc1 * factor[:, None]).half() + 0.0, (fc2 / factor).half() + 0.0)
    if not (halves.fc1.isfinite().all() and halves.fc2.isfinite().all()):
        raise NumericsError(f"layer {layer}: weights of the predictor are too large for F16")
    return halves
