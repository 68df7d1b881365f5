"""Rules for files that the original PowerInfer can read."""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys
from powerinfer.models import Architecture, get_architecture
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind

__all__ = [
    "EMBEDDING",
    "HEAD",
    "MAGIC",
    "check_is_known",
    "differences",
    "format_for",
    "has_architecture",
    "powerinfer_architecture",
    "renamed",
    "with_head",
]

T = TypeVar("T")

MAGIC = "PWRI"

# Architecture of the original with the model's hard-wired activation.
_ARCHITECTURES = {
    ("llama", ActivationKind.RELU): "llama",
    # The original runs plain ReLU where the engine uses the threshold.
    ("llama", ActivationKind.FATRELU): "llama",
    ("llama", ActivationKind.DRELU): "bamboo",
    ("bamboo", ActivationKind.DRELU): "bamboo",
    ("falcon", ActivationKind.RELU): "falcon",
    ("opt", ActivationKind.RELU): "opt",
}
EMBEDDING, _POSITIONS, HEAD = "token_embd.weight", "position_embd.weight", "output.weight"
# The only number of rows its loader accepts.
_OPT_POSITIONS = 2050
# Matrices read by neuron rows, and the formats it supports for all others.
_PREDICTED = ("ffn_gate", "ffn_up", "ffn_down_t")
_BLOCKS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
# Tensors its loader knows per architecture, outside blocks and in them; it rejects all others.
_ATTENTION = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight")
_GATED = (
    *("attn_norm.weight", *_ATTENTION, "ffn_norm.weight"),
    *("ffn_gate.weight", "ffn_up.weight", "ffn_down_t.weight", "fc1.weight", "fc2.weight"),
)
_OPT = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up")
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "llama": (EMBEDDING, "output_norm.weight", HEAD, *_GATED),
    "bamboo": (EMBEDDING, "output_norm.weight", HEAD, *_GATED),
    "falcon": (
        *(EMBEDDING, "output_norm.weight", "output_norm.bias", HEAD),
        *("attn_norm.weight", "attn_norm.bias", "attn_norm_2.weight", "attn_norm_2.bias"),
        *("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down_t.weight"),
        *("fc1.weight", "fc2.weight"),
    ),
    "opt": (
        *(EMBEDDING, _POSITIONS, "output_norm.weight", "output_norm.bias"),
        *(f"{name}.{part}" for name in (*_OPT, "ffn_down_t") for part in ("weight", "bias")),
        *("fc1.weight", "fc2.weight"),
    ),
}
_BLOCK = re.compile(r"blk\.[0-9]+\.")
_REMEDY = "; leave the predictors out"


class _Origin(Protocol):
    """Source of a tensor to write: files and tensors for messages, and the new shape."""

    @property
    def sources(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def has_architecture(architecture: Architecture, activation: Activation) -> bool:
    """Return whether the original has models of this kind."""
    return (architecture.name, activation.kind) in _ARCHITECTURES


def powerinfer_architecture(
    architecture: Architecture, activation: Activation, where: str
) -> Architecture:
    """Find the architecture that the original uses for a model with predictors."""
    name = _ARCHITECTURES.get((architecture.name, activation.kind))
    if name is None:
        known = sorted(f"{own} with {kind.value}" for own, kind in _ARCHITECTURES)
        raise UnsupportedError(
            f"{where}: PowerInfer's format has no {architecture.name} with {activation}; it has "
            f"{', '.join(known)}"
        )
    return get_architecture(name)


def renamed(values: Mapping[str, T], architecture: Architecture, new: Architecture) -> dict[str, T]:
    """Rename the keys of a model for another architecture."""
    own = keys.of_architecture(architecture.name, "")
    return {
        keys.of_architecture(new.name, key.removeprefix(own)) if key.startswith(own) else key: value
        for key, value in values.items()
    }


def check_is_known(
    tensors: Mapping[str, _Origin], architecture: Architecture, metadata: Mapping[str, object]
) -> None:
    """Check that the original supports all tensors and keys."""
    known = _KNOWN[architecture.name]
    for name, origin in tensors.items():
        if _BLOCK.sub("", name, count=1) not in known:
            raise UnsupportedError(
                f"{origin.sources}: PowerInfer's format has no {name} in "
                f"{architecture.name} files{_REMEDY}"
            )
        if name == _POSITIONS and origin.shape[:1] != (_OPT_POSITIONS,):
            raise UnsupportedError(
                f"{origin.sources}: has the shape {list(origin.shape)}; in PowerInfer's format OPT "
                f"has {_OPT_POSITIONS} positions{_REMEDY}"
            )
    if keys.POST_NORM in metadata:
        raise UnsupportedError(f"PowerInfer's format has no {keys.POST_NORM}{_REMEDY}")
    _check_sizes(architecture, metadata)


def _check_sizes(architecture: Architecture, metadata: Mapping[str, object]) -> None:
    def value(key: str, default: object = None) -> object:
        return metadata.get(keys.of_architecture(architecture.name, key), default)

    hidden_size, num_heads = int(str(value(keys.HIDDEN_SIZE))), int(str(value(keys.NUM_HEADS)))
    head_dim = int(str(value(keys.HEAD_DIM, hidden_size // num_heads)))
    if num_heads * head_dim != hidden_size:
        raise UnsupportedError(
            f"{num_heads} heads of width {head_dim} do not add up to hidden_size {hidden_size}: "
            f"PowerInfer's format has no such models{_REMEDY}"
        )
    rotary_dim = value(keys.ROPE_DIMENSION_COUNT, head_dim)
    if architecture.name in ("llama", "falcon") and rotary_dim != head_dim:
        raise UnsupportedError(
            f"{rotary_dim} of {head_dim} numbers of a head rotate: PowerInfer's format has no such "
            f"{architecture.name} models{_REMEDY}"
        )


def with_head(tensors: Mapping[str, T], architecture: Architecture) -> dict[str, T]:
    """Write the output head out; for OPT it must be omitted."""
    found = dict(tensors)
    if architecture.name == "opt":
        found.pop(HEAD, None)
    elif EMBEDDING in found:
        found.setdefault(HEAD, found[EMBEDDING])
    return found


def format_for(name: str, shape: Sequence[int], source: str) -> str:
    """Choose a format in which the original computes a tensor correctly.

    Its sparse products treat everything but Q4_0 as F16, and it knows none of the newer formats.
    """
    module, _, part = name.rpartition(".")
    if len(shape) < 2 or part == "bias":
        return "f32"
    known = ("q4_0",) if module.rpartition(".")[2] in _PREDICTED else _BLOCKS
    is_known = source in known and shape[-1] % get_format(source).block_size == 0
    return source if is_known else "f16"


def differences(
    architecture: Architecture, activation: Activation, metadata: Mapping[str, object]
) -> tuple[str, ...]:
    """Describe differences between the original program's computation and the engine's."""
    found = []
    if activation.kind is ActivationKind.FATRELU:
        found.append("the original PowerInfer runs ReLU instead of FatReLU")
    window = metadata.get(keys.of_architecture(architecture.name, keys.SLIDING_WINDOW), 0)
    length = metadata.get(keys.of_architecture(architecture.name, keys.CONTEXT_LENGTH), 0)
    if 0 < int(str(window)) < int(str(length)):
        found.append(
            f"the original PowerInfer has no window of {window} tokens and attends to all of them"
        )
    if architecture.name == "opt":
        found.append("the original PowerInfer adds nothing under the root of OPT's norms")
    return tuple(found)
