"""One training of one layer's predictor at one rank, step by step; can resume at any of them."""

import math

import torch

from powerinfer.errors import NumericsError
from powerinfer.train.checkpoint import SavedState
from powerinfer.train.predictors.batches import Batches
from powerinfer.train.predictors.layer_data import LayerData
from powerinfer.train.predictors.network import Network

__all__ = ["Training"]

# Enough for a layer of the embedded model; more of each did not help there.
_BATCH = 1024
_EPOCHS = 1
_LEAST_STEPS, _MOST_STEPS = 600, 20_000
_RATE, _LAST_RATE = 0.05, 0.02
_WARM_UP_STEPS = 50
# Tokens that the size of inputs is measured on.
_SAMPLE = 4096


class Training:
    """Trains a network for a fixed number of steps with Muon.

    Attributes:
        input_scale: factor of the stored inputs that makes their mean square 1.
    """

    def __init__(self, data: LayerData, rank: int, device: torch.device, seed: int) -> None:
        self._data, self.device, self.rank = data, device, rank
        self._batches = Batches(data, _BATCH, seed)
        self.num_steps = min(
            max(_EPOCHS * data.num_learned // self._batches.size, _LEAST_STEPS), _MOST_STEPS
        )
        self.step = 0
        network = Network.random(rank, data.hidden_size, data.num_neurons, seed)
        self.network = Network(network.fc1.to(device), network.fc2.to(device))
        self._optimizer = torch.optim.Muon(
            [self.network.fc1, self.network.fc2], lr=_RATE, weight_decay=0.0
        )
        sample = self._batches[0].inputs[:_SAMPLE].float()
        size = float(sample.square().mean().sqrt())
        self.input_scale = 1 / size if size > 0 else 1.0
        self._dtype = _fast_dtype(device)

    def advance(self) -> float:
        """Make one step; returns its loss."""
        block = self._batches[self.step].to(self.device)
        x = block.inputs.float() * self.input_scale
        loss = self.network.learn(x, block.shares(), self._dtype)
        for group in self._optimizer.param_groups:
            group["lr"] = _RATE * self._share_of_rate()
        self._optimizer.step()
        self.step += 1
        value = float(loss)
        if not math.isfinite(value):
            raise NumericsError(
                f"layer {self._data.number}, rank {self.rank}, step {self.step}: loss {value}"
            )
        return value

    def state(self) -> SavedState:
        """The state that `restore` needs."""
        return {
            "rank": self.rank,
            "step": self.step,
            "fc1": self.network.fc1,
            "fc2": self.network.fc2,
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: SavedState) -> None:
        """Resume from a state of a training of the same data, rank and seed."""
        self.step = state["step"]
        self.network.fc1.copy_(state["fc1"])
        self.network.fc2.copy_(state["fc2"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _share_of_rate(self) -> float:
        """Linear warm-up, then half a cosine wave."""
        cosine = (1 + math.cos(math.pi * self.step / self.num_steps)) / 2
        warm = min(1.0, (self.step + 1) / _WARM_UP_STEPS)
        return warm * (_LAST_RATE + (1 - _LAST_RATE) * cosine)


def _fast_dtype(device: torch.device) -> torch.dtype:
    """bf16 where the device multiplies matrices in it; training needs no more precision."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    has_bf16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return torch.bfloat16 if has_bf16 else torch.float32
