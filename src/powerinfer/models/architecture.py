"""What a file in ``architectures/`` exports: the facts of one model family and its layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import GGUFFile, keys
from powerinfer.models.attention import WindowPattern
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules
from powerinfer.models.scales import DefaultScales, usual_scales
from powerinfer.ops.some_backend import Activations
from powerinfer.predictors import PredictorInput
from powerinfer.values import Activation, ActivationKind

__all__ = [
    "Architecture",
    "NormKind",
    "QKNorm",
    "architecture_names",
    "architecture_of",
    "get_architecture",
]

_PACKAGE = "powerinfer.models.architectures"
_WHAT = "architecture"
_NO_PATTERN = WindowPattern()
_SILU = Activation(ActivationKind.SILU)
_RELU = Activation(ActivationKind.RELU)


class NormKind(StrEnum):
    """How vectors are normalised.

    RMS: by their root mean square (arXiv 1910.07467); no bias.
    LAYER: to mean 0 and variance 1 (arXiv 1607.06450); with a bias, which files must have.
    """

    RMS = "rms"
    LAYER = "layer"


class QKNorm(StrEnum):
    """What `attn_q_norm` and `attn_k_norm`, RMS norms before the rotation, normalise.

    HEAD: each head; the heads of q share a weight, and so do those of k.
    PROJECTION: all heads of a token as one vector.
    """

    HEAD = "head"
    PROJECTION = "projection"


@dataclass(frozen=True, slots=True)
class Architecture:
    """Facts of a model family.

    Attributes:
        name: value of `general.architecture`, prefix of its keys and name of its file.
        run_layer: ``run_layer(model, number, x, batch, cache, *, wanted, observe)``, see
            `architectures/llama.py`.
        activation: of the FFN, where the file does not say.
        powerinfer_activation: the same in a file with PowerInfer's magic.
        is_rope_interleaved: pairs (2i, 2i+1) rotate together; else (i, i + half).
        rounds_yarn_ramp: of `RopeConfig`, where the file scales by YaRN.
        position_offset: position p has row p + this of a learned table, `position_embd`; None for
            an architecture with rotary positions.
        norm: kind of all its norms.
        norm_eps: their epsilon where the file has no key for it; None if it must.
        layer_norms: norms that every block has. `attn_norm` and `ffn_norm` normalise what attention
            and FFN get, `post_attention_norm` and `post_ffw_norm` what they return.
        optional_layer_norms: norms that some files have.
        norm_names: of norms that files of this family call otherwise than we.
        may_be_post_norm: norms may follow attention and FFN (`powerinfer.post_norm`).
        is_parallel: attention and FFN of a layer start from the same input, side by side.
        is_gated: the FFN has a gate; else the activation applies to `up`.
        qk_norm: norms of q and k; None for none.
        has_attention_sinks: each head has a score that no position has, `attn_sinks`.
        windows: which layers have a window, where a file gives one.
        scales: what the model multiplies by, where the file has no keys for it.
        predictor_input: what predictors stored in PowerInfer files of this family look at.
        is_routed_by_layer_input: a router sees the residual stream as the layer gets it, instead of
            what the FFN gets.
        experts: how routers decide, in families that have any; None for those that have none.
        required_biases: layer tensors that must have a bias; others may.
        hugging_face_names: GGUF tensor name (``{layer}`` for the number) to Hugging Face name, or
            to the names it has in different models. ``{expert}`` stands for the number of an
            expert that has a tensor of its own. `ffn_gate_up` is gate and up in one tensor.
        checkpoint: what else a converter of its Hugging Face checkpoints must know.
    """

    name: str
    run_layer: Callable[..., Activations]
    hugging_face_names: Mapping[str, str | tuple[str, ...]]
    checkpoint: CheckpointRules
    activation: Activation = _SILU
    powerinfer_activation: Activation = _RELU
    is_rope_interleaved: bool = True
    rounds_yarn_ramp: bool = True
    position_offset: int | None = None
    norm: NormKind = NormKind.RMS
    norm_eps: float | None = None
    layer_norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    optional_layer_norms: tuple[str, ...] = ()
    norm_names: Mapping[str, str] = field(default_factory=dict)
    may_be_post_norm: bool = False
    is_parallel: bool = False
    is_gated: bool = True
    qk_norm: QKNorm | None = None
    has_attention_sinks: bool = False
    windows: WindowPattern = _NO_PATTERN
    scales: DefaultScales = usual_scales
    predictor_input: PredictorInput = PredictorInput.RESIDUAL
    is_routed_by_layer_input: bool = False
    experts: ExpertRules | None = None
    required_biases: frozenset[str] = frozenset()

    @property
    def norm_eps_key(self) -> str:
        """Key of the norms' epsilon, without the architecture's prefix."""
        return keys.RMS_NORM_EPSILON if self.norm is NormKind.RMS else keys.LAYER_NORM_EPSILON


def architecture_names() -> tuple[str, ...]:
    """Names of the architectures we run, sorted."""
    return _plugins.keys(_PACKAGE)


def get_architecture(name: str) -> Architecture:
    """Return the architecture of this name.

    Raises:
        UnsupportedError: there is none; the message lists those there are.
    """
    found = _plugins.load(_PACKAGE, name, "ARCHITECTURE", what=_WHAT)
    if not isinstance(found, Architecture):
        raise TypeError(f"{_PACKAGE}.{name}.ARCHITECTURE is a {type(found).__name__}")
    return found


def architecture_of(file: GGUFFile) -> Architecture:
    """Return the architecture of a model file.

    Raises:
        UnsupportedError: it is not implemented. The message names no near one: a file whose
            architecture was changed by hand would load and write nonsense.
        GGUFError: the file does not say which it has.
    """
    name = file.get_str(keys.ARCHITECTURE)
    names = architecture_names()
    if name not in names:
        raise UnsupportedError(
            f"{file.path}: architecture {name!r} is not supported. Supported: {', '.join(names)}. "
            "llama.cpp may run it."
        )
    return get_architecture(name)
