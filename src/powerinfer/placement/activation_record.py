"""`activation.json` of PowerInfer's `activation` folder: the origin of its counts.

PowerInfer ignores it. With it the counts give exact frequencies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PlacementError
from powerinfer.sidecar import Field, Sidecar

__all__ = [
    "ACTIVATION",
    "MOST_TOKENS",
    "ActivationProfile",
    "ActivationRecord",
    "Counted",
    "record_path",
]

# More than any model has, so that a few bytes of a file cannot request much memory.
_MOST_LAYERS = 1 << 12
_MOST_NEURONS = 1 << 24
_MOST_TEXTS = 1 << 12
MOST_TOKENS = 1 << 40
"""Limit on the tokens of a profile: sums of counts stay exact in f64."""
_LONGEST_TEXT = 1000
_TEXTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """Inputs that determine the counts of a profile.

    Attributes:
        text_identity: hash of the texts in their order.
        window: tokens per window of attention.
        limit: maximum number of tokens; None for all.
    """

    model_identity: str
    activation: str
    text_identity: str
    window: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class ActivationRecord:
    """Origin of the counts of a folder.

    Attributes:
        num_neurons: neurons per layer, in all experts.
        num_experts: experts per layer; 1 for an FFN without a router.
        fired: sum of the counts of each layer.
    """

    counted: Counted
    texts: tuple[str, ...]
    num_tokens: int
    num_neurons: int
    num_experts: int
    fired: tuple[int, ...]

    @property
    def text_names(self) -> str:
        """First names for display."""
        more = len(self.texts) - _TEXTS_SHOWN
        shown = ", ".join(self.texts[:_TEXTS_SHOWN])
        return shown if more <= 0 else f"{shown} and {more} more"


@dataclass(frozen=True, slots=True, eq=False)
class ActivationProfile:
    """Counts of the firing neurons of a model.

    Attributes:
        counts: i64[num_layers, num_neurons], number of tokens for which each neuron fired; neuron i
            of expert e is number e * (neurons of an expert) + i.
    """

    record: ActivationRecord
    counts: npt.NDArray[np.int64]

    @property
    def frequency(self) -> npt.NDArray[np.float64]:
        """Share of the tokens for which each neuron fired, f64[num_layers, num_neurons]."""
        return self.counts / self.record.num_tokens


def record_path(folder: Path) -> Path:
    """Return the path of a folder's record."""
    return folder / "activation.json"


def _encode(record: ActivationRecord) -> Mapping[str, object]:
    return {
        "model": record.counted.model_identity,
        "activation": record.counted.activation,
        "texts": list(record.texts),
        "text": record.counted.text_identity,
        "window": record.counted.window,
        "limit": record.counted.limit,
        "tokens": record.num_tokens,
        "layers": len(record.fired),
        "neurons": record.num_neurons,
        "experts": record.num_experts,
        "fired": list(record.fired),
    }


def _decode(top: Field) -> ActivationRecord:
    fields = top.exactly(
        *("version", "model", "activation", "texts", "text", "window", "limit"),
        *("tokens", "layers", "neurons", "experts", "fired"),
    )
    limit = fields["limit"]
    num_tokens = fields["tokens"].integer(1, MOST_TOKENS)
    num_neurons = fields["neurons"].integer(1, _MOST_NEURONS)
    counted = Counted(
        model_identity=fields["model"].text(_LONGEST_TEXT),
        activation=fields["activation"].text(_LONGEST_TEXT),
        text_identity=fields["text"].text(_LONGEST_TEXT),
        window=fields["window"].integer(1, num_tokens),
        limit=None if limit.is_null() else limit.integer(1, MOST_TOKENS),
    )
    most = num_tokens * num_neurons
    fired = tuple(item.integer(0, most) for item in fields["fired"].items(_MOST_LAYERS))
    if fields["layers"].integer(1, _MOST_LAYERS) != len(fired):
        fields["layers"].fail(f"is not {len(fired)}, the number of items of `fired`")
    return ActivationRecord(
        counted=counted,
        texts=tuple(text.text(_LONGEST_TEXT) for text in fields["texts"].items(_MOST_TEXTS)),
        num_tokens=num_tokens,
        num_neurons=num_neurons,
        num_experts=fields["experts"].integer(1, num_neurons),
        fired=fired,
    )


ACTIVATION: Sidecar[ActivationRecord] = Sidecar(
    noun="activation profile",
    suffix=".activation.json",
    folder="activations",
    version=1,
    largest_bytes=4 << 20,
    error=PlacementError,
    encode=_encode,
    decode=_decode,
    identity=lambda record: record.counted.model_identity,
    remedy="run `powerinfer profile` again, or remove the folder",
    remedy_for_others="run `powerinfer profile` for this one",
)
"""`activation/activation.json`; neither next to a model nor in the cache."""
