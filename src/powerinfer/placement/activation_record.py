"""`activation.json` of PowerInfer's `activation` folder: what its counts were counted on.

The original tool reads only the files beside it. With it the counts give exact frequencies.
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

_FIELDS = (
    "version",
    "model",
    "activation",
    "texts",
    "text",
    "window",
    "limit",
    "tokens",
    "layers",
    "neurons",
    "experts",
    "fired",
)
# More than any has, so that a few bytes of a file cannot ask for much memory.
_MOST_LAYERS = 1 << 12
_MOST_NEURONS = 1 << 24
_MOST_TEXTS = 1 << 12
MOST_TOKENS = 1 << 40
"""That a profile counts: sums of counts stay exact in f64."""
_LONGEST_TEXT = 1000
_TEXTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """What decides the counts of a profile.

    Attributes:
        model_identity: `gguf.model_identity` of the model.
        activation: of its FFNs, as text.
        text_identity: tells the texts apart, in their order.
        window: tokens that see each other.
        limit: most tokens that were wanted; None for all.
    """

    model_identity: str
    activation: str
    text_identity: str
    window: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class ActivationRecord:
    """Where the counts of a folder come from.

    Attributes:
        counted: what decides them.
        texts: names of the texts.
        num_tokens: that were counted.
        num_neurons: of each layer, in all experts.
        num_experts: of each layer; 1 for an FFN without a router.
        fired: of each layer the sum of the counts.
    """

    counted: Counted
    texts: tuple[str, ...]
    num_tokens: int
    num_neurons: int
    num_experts: int
    fired: tuple[int, ...]

    @property
    def text_names(self) -> str:
        """The first of the names, for people."""
        more = len(self.texts) - _TEXTS_SHOWN
        shown = ", ".join(self.texts[:_TEXTS_SHOWN])
        return shown if more <= 0 else f"{shown} and {more} more"


@dataclass(frozen=True, slots=True, eq=False)
class ActivationProfile:
    """How often each neuron of a model fired.

    Attributes:
        record: where the counts come from.
        counts: i64[num_layers, num_neurons], tokens for which each neuron fired; neuron i of expert
            e is number e * (neurons of an expert) + i.
    """

    record: ActivationRecord
    counts: npt.NDArray[np.int64]

    @property
    def frequency(self) -> npt.NDArray[np.float64]:
        """f64[num_layers, num_neurons], share of the tokens for which each fired."""
        return self.counts / self.record.num_tokens


def record_path(folder: Path) -> Path:
    """Where a folder has its record."""
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
    fields = top.exactly(*_FIELDS)
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
        fields["layers"].fail(f"is not {len(fired)}, as many as `fired` has items")
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
"""`activation/activation.json`; it lies in its folder, neither beside a model nor in the cache."""
