"""Brief activation profiles: neurons computed on a few hundred tokens, stored for later runs.

Paper: "Offline neuron activation profiling" (arXiv 2312.12456). A calibration, if there is one,
counts more tokens and is preferred.
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
    """Activation counts of one model.

    Attributes:
        num_computed: i64[num_layers, num_neurons], tokens for which each neuron is computed: it
            fires or, with a predictor, is predicted to; if nothing is skipped, its expert is
            chosen.
    """

    num_computed: npt.NDArray[np.int64]
    num_tokens: int
    text_name: str


def measure_profile(model: Model, text: CalibrationText, progress: LayersDone | None) -> Profile:
    """Count the neurons that a model with its predictors attached computes."""
    # The first token of a window is left out: its activations are not typical.
    is_counted = np.ones(text.windows.shape, bool)
    is_counted[:, 0] = False
    layers: list[npt.NDArray[np.int64]] = []

    def count(number: int, inputs: FFNInputs) -> None:
        layers.append(_count(model, number, inputs.rows(is_counted.reshape(-1))))

    measure_layers(model, text.windows, count, progress)
    return Profile(np.stack(layers), int(is_counted.sum()), text.name)


def _count(model: Model, number: int, inputs: FFNInputs) -> npt.NDArray[np.int64]:
    ops, layer = model.ops, model.weights.layers[number]
    if model.sparsity == OFF:
        routing = Routing.of(ops, layer.ffn, inputs.x, inputs.router)
        return routing.count(np.ones((len(inputs.x), routing.num_candidates), bool))
    if layer.predictor is None:
        return count_active(ops, layer.ffn, inputs.x, inputs.router)
    counts = np.zeros(model.config.num_neurons, np.int64)
    for chunk in token_chunks(len(inputs.x)):
        some = inputs.rows(chunk)
        routing = Routing.of(ops, layer.ffn, some.x, some.router)
        predicted = layer.predictor.select(ops, layer.ffn, some.x, some.raw)
        counts += routing.count(routing.mask(predicted))
    return counts


def find_profile(model: Model, identity: str) -> Profile | None:
    """Profile stored by an earlier run of this model with the same sparsity, or None."""
    profile = PROFILE.recall(_path(model, identity))
    shape = (model.config.num_layers, model.config.num_neurons)
    return profile if profile is not None and profile.num_computed.shape == shape else None


def save_profile(model: Model, identity: str, profile: Profile) -> None:
    """Store a profile in the user's cache folder. Failures only mean that it is measured again."""
    PROFILE.keep(_path(model, identity), profile)


def _path(model: Model, identity: str) -> Path:
    """Cache file for the model and everything that decides which neurons it computes."""
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
"""Profiles, cached under the model's identity and a digest of its sparsity."""
