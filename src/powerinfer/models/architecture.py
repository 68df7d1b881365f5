"""Exports of a file in ``architectures/``: the facts of a model family and its layer function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import GGUFFile, keys
from powerinfer.models.attention import WindowPattern
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import StateMixer
from powerinfer.models.scales import DefaultScales, Sizes, usual_scales
from powerinfer.ops.backend import Activations
from powerinfer.predictors import PredictorInput
from powerinfer.values import Activation, ActivationKind

__all__ = [
    "AbsentParts",
    "Architecture",
    "NormKind",
    "QKNorm",
    "Rotation",
    "architecture_names",
    "architecture_of",
    "get_architecture",
    "no_absent_parts",
    "no_state",
]

_PACKAGE = "powerinfer.models.architectures"
_WHAT = "architecture"
_NO_PATTERN = WindowPattern()
_SILU = Activation(ActivationKind.SILU)
_RELU = Activation(ActivationKind.RELU)


class NormKind(StrEnum):
    """Normalization of vectors.

    RMS: by their root mean square (arXiv 1910.07467), without bias. LAYER: to mean 0 and variance 1
    (arXiv 1607.06450), with a bias that files must have.
    """

    RMS = "rms"
    LAYER = "layer"


class QKNorm(StrEnum):
    """Scope of `attn_q_norm` and `attn_k_norm`, RMS norms before the rotation.

    HEAD: each head; all heads of q share a weight, and all heads of k. PROJECTION: all heads of a
    token as one vector.
    """

    HEAD = "head"
    PROJECTION = "projection"


class Rotation(StrEnum):
    """Whether attention rotates queries and keys, in families that could.

    SWITCHED: unless the file's `rope.scaling.finetuned` is false.
    """

    ALWAYS = "always"
    NEVER = "never"
    SWITCHED = "switched"


@dataclass(frozen=True, slots=True)
class AbsentParts:
    """Layers that lack one of their two parts, by number."""

    mixers: frozenset[int] = frozenset()
    ffns: frozenset[int] = frozenset()


def no_absent_parts(metadata: Metadata, num_layers: int) -> AbsentParts:
    """Return that every layer has a mixer and an FFN."""
    return AbsentParts()


def no_state(metadata: Metadata, sizes: Sizes) -> dict[int, StateMixer]:
    """Return no mixer with state: every layer has attention."""
    return {}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Facts of a model family.

    Attributes:
        name: value of `general.architecture`, key prefix and file name.
        run_layer: ``run_layer(model, number, x, batch, cache, *, wanted, observe)``, see
            `architectures/llama.py`; also gets ``per_layer`` in models with per-layer embeddings,
            see `PerLayerEmbedding`.
        powerinfer_activation: default in a file with PowerInfer's magic.
        is_rope_interleaved: pairs (2i, 2i+1) rotate together; else (i, i + half).
        rounds_yarn_ramp: value of `RopeConfig.rounds_ramp`.
        position_offset: position p has row p + this of the learned table `position_embd`; None for
            rotary positions.
        rotation: whether rotary positions are applied.
        has_attention: some layer has attention; else files need no numbers of heads.
        norm_eps: epsilon of the norms if the file has no key for it; None if the key is required.
        layer_norms: norms of every block. `attn_norm` and `ffn_norm` normalize the inputs of
            attention and FFN, `post_attention_norm` and `post_ffw_norm` their outputs.
        norm_names: file names of norms that differ from ours.
        may_be_post_norm: norms may follow attention and FFN (`powerinfer.post_norm`).
        is_parallel: attention and FFN of a layer share one input.
        is_gated: the FFN has a gate; else the activation applies to `up`.
        qk_norm: norms of q and k, or None.
        has_attention_gate: each head of `attn_q` has the rows of its query, then those of a gate.
        has_attention_sinks: each head has an extra score without a position, `attn_sinks`.
        windows: layers with a window, if the file gives one.
        layers_differ: heads and FFNs may have other sizes from layer to layer, values may be the
            keys, and the last layers may read keys and values of earlier ones. Their models run on
            the CPU alone for now.
        normalizes_values: the heads of values have an RMS norm without weights.
        needs_rope_divisors: files must have `rope_freqs.weight`.
        scales: scale factors, if the file has no keys for them.
        state_mixers: reads the mixers with state, by the number of their layer.
        absent_parts: reads which layers have no mixer, or no FFN.
        predictor_input: input of predictors stored in PowerInfer files of this family.
        is_routed_by_layer_input: routers see the residual stream before the layer instead of the
            FFN's input.
        experts: routing rules; None for families without experts.
        required_biases: layer tensors that must have a bias; for others it is optional.
        hugging_face_names: GGUF tensor name (``{layer}`` for the number) to Hugging Face name, or
            to the names used by different models. ``{expert}`` stands for the number of an expert
            with its own tensor. `ffn_gate_up` is gate and up in one tensor.
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
    rotation: Rotation = Rotation.ALWAYS
    has_attention: bool = True
    norm: NormKind = NormKind.RMS
    norm_eps: float | None = None
    layer_norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    optional_layer_norms: tuple[str, ...] = ()
    norm_names: Mapping[str, str] = field(default_factory=dict)
    may_be_post_norm: bool = False
    is_parallel: bool = False
    is_gated: bool = True
    qk_norm: QKNorm | None = None
    has_attention_gate: bool = False
    has_attention_sinks: bool = False
    windows: WindowPattern = _NO_PATTERN
    layers_differ: bool = False
    normalizes_values: bool = False
    needs_rope_divisors: bool = False
    scales: DefaultScales = usual_scales
    state_mixers: Callable[[Metadata, Sizes], Mapping[int, StateMixer]] = no_state
    absent_parts: Callable[[Metadata, int], AbsentParts] = no_absent_parts
    predictor_input: PredictorInput = PredictorInput.RESIDUAL
    is_routed_by_layer_input: bool = False
    experts: ExpertRules | None = None
    required_biases: frozenset[str] = frozenset()

    @property
    def norm_eps_key(self) -> str:
        """Key of the norm epsilon, without the architecture's prefix."""
        return keys.RMS_NORM_EPSILON if self.norm is NormKind.RMS else keys.LAYER_NORM_EPSILON


def architecture_names() -> tuple[str, ...]:
    """Names of the supported architectures, sorted."""
    return _plugins.keys(_PACKAGE)


def get_architecture(name: str) -> Architecture:
    """Return the architecture of this name.

    Raises:
        UnsupportedError: unknown name; the message lists the known ones.
    """
    found = _plugins.load(_PACKAGE, name, "ARCHITECTURE", what=_WHAT)
    if not isinstance(found, Architecture):
        raise TypeError(f"{_PACKAGE}.{name}.ARCHITECTURE is a {type(found).__name__}")
    return found


def architecture_of(file: GGUFFile) -> Architecture:
    """Return the architecture of a model file.

    Raises:
        UnsupportedError: it is not implemented. The message suggests no similar name: a file
            relabeled by hand would load and write nonsense.
        GGUFError: the file does not name its architecture.
    """
    name = file.get_str(keys.ARCHITECTURE)
    names = architecture_names()
    if name not in names:
        raise UnsupportedError(
            f"{file.path}: architecture {name!r} is not supported. Supported: {', '.join(names)}. "
            "llama.cpp may run it."
        )
    return get_architecture(name)
