"""A brief profile: which neurons a model computes on a few hundred tokens, stored for later runs.

Paper: "Offline neuron activation profiling" (arXiv 2312.12456). A calibration counts more tokens,
so it is used instead if the model has one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.ffn_inputs import FFNInputs
from powerinfer.calibration.ground_truth import count_active, token_chunks
from powerinfer.calibration.routing import Routing
from powerinfer.calibration.text import CalibrationText
from powerinfer.calibration.window_pass import LayersDone, measure_layers
from powerinfer.errors import PlacementError
from powerinfer.models import Model
from powerinfer.models.sparsity import OFF
from powerinfer.sidecar import Field, Sidecar

__all__ = ["PROFILE", "Profile", "find_profile", "measure_profile", "save_profile"]

_LARGEST_COUNT = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Counts of one model.

    Attributes:
        num_computed: i64[num_layers, num_neurons], tokens for which each neuron is computed: it
            fires or, where a predictor decides, is predicted to; where nothing is skipped, its
            expert is chosen.
        num_tokens: that were counted.
        text_name: what they are of.
    """

    num_computed: npt.NDArray[np.int64]
    num_tokens: int
    text_name: str


def measure_profile(model: Model, text: CalibrationText, progress: LayersDone | None) -> Profile:
    """Count what a model computes.

    Args:
        model: with an activation of the ReLU family and its predictors attached.
        text: what to run it on.
        progress: told after each layer.

    Raises:
        NumericsError: the model produced NaN or infinity.
    """
    counter = _Counter(model, text.windows.shape)
    measure_layers(model, text.windows, counter.count, progress)
    return Profile(np.stack(counter.layers), counter.num_tokens, text.name)


class _Counter:
    """Takes the activations of a pass, layer by layer."""

    def __init__(self, model: Model, shape: tuple[int, ...]) -> None:
        self._model = model
        # Models do strange things to the first token of a window; what is typical leaves it out.
        is_counted = np.ones(shape, bool)
        is_counted[:, 0] = False
        self._counted = is_counted.reshape(-1)
        self.layers: list[npt.NDArray[np.int64]] = []

    @property
    def num_tokens(self) -> int:
        return int(self._counted.sum())

    def count(self, number: int, inputs: FFNInputs) -> None:
        """Count the neurons of a layer; see `window_pass.Measure`."""
        self.layers.append(self._count(number, inputs.rows(self._counted)))

    def _count(self, number: int, inputs: FFNInputs) -> npt.NDArray[np.int64]:
        ops, layer = self._model.ops, self._model.weights.layers[number]
        if self._model.sparsity == OFF:
            routing = Routing.of(ops, layer.ffn, inputs.x, inputs.router)
            return routing.count(np.ones((len(inputs.x), routing.num_candidates), bool))
        if layer.predictor is None:
            return count_active(ops, layer.ffn, inputs.x, inputs.router)
        counts = np.zeros(self._model.config.num_neurons, np.int64)
        for chunk in token_chunks(len(inputs.x)):
            some = inputs.rows(chunk)
            routing = Routing.of(ops, layer.ffn, some.x, some.router)
            predicted = layer.predictor.select(ops, layer.ffn, some.x, some.raw)
            counts += routing.count(routing.mask(predicted))
        return counts


def find_profile(model: Model, identity: str) -> Profile | None:
    """What an earlier run measured of this model with the same sparsity; None if there is nothing.

    Args:
        model: with its predictors attached.
        identity: of its file.
    """
    profile = PROFILE.recall(_path(model, identity))
    shape = (model.config.num_layers, model.config.num_neurons)
    return profile if profile is not None and profile.num_computed.shape == shape else None


def save_profile(model: Model, identity: str, profile: Profile) -> None:
    """Keep a profile in the user's cache folder; where that fails, it is measured again."""
    PROFILE.keep(_path(model, identity), profile)


def _path(model: Model, identity: str) -> Path:
    """A file for the model and what decides about its neurons."""
    decides = [str(model.config.activation), str(model.mlp_threshold), *model.layer_kinds]
    digest = hashlib.sha256("\n".join(decides).encode()).hexdigest()
    return PROFILE.cached(f"{identity}.{digest[:16]}")


def _encode(profile: Profile) -> Mapping[str, object]:
    return {
        "text": profile.text_name,
        "tokens": profile.num_tokens,
        "computed": profile.num_computed.tolist(),
    }


def _decode(top: Field) -> Profile:
    num_tokens = top["tokens"].integer(1, _LARGEST_COUNT)
    rows = [row.counts(num_tokens) for row in top["computed"].items()]
    if len({len(row) for row in rows}) != 1:
        top["computed"].fail("has no layers, or layers of different sizes")
    return Profile(np.stack(rows), num_tokens, top["text"].text())


PROFILE: Sidecar[Profile] = Sidecar(
    noun="profile",
    suffix=".profile.json",
    folder="profiles",
    version=1,
    largest_bytes=256 << 20,
    error=PlacementError,
    encode=_encode,
    decode=_decode,
)
"""A profile, in the cache under the model's identity and a digest of what decides."""
