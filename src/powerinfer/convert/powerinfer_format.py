"""What the original PowerInfer reads, and what its files therefore may and must hold."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from powerinfer.convert.arrange import Target
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys
from powerinfer.models import Architecture, get_architecture
from powerinfer.values import Activation, ActivationKind

__all__ = ["MAGIC", "check_is_known", "powerinfer_architecture", "renamed", "with_head"]

MAGIC = "PWRI"

# The architecture of the original whose hard-wired activation a model has.
_ARCHITECTURES = {
    ("llama", ActivationKind.RELU): "llama",
    # It runs plain ReLU where the engine reads the threshold.
    ("llama", ActivationKind.FATRELU): "llama",
    ("llama", ActivationKind.DRELU): "bamboo",
    ("bamboo", ActivationKind.DRELU): "bamboo",
    ("falcon", ActivationKind.RELU): "falcon",
    ("opt", ActivationKind.RELU): "opt",
}
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
# What its loader has of each architecture, outside blocks and in them; it refuses all else.
_ATTENTION = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight")
_GATED = (
    *("attn_norm.weight", *_ATTENTION, "ffn_norm.weight"),
    *("ffn_gate.weight", "ffn_up.weight", "ffn_down_t.weight", "fc1.weight", "fc2.weight"),
)
_OPT = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up")
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "llama": (_EMBEDDING, "output_norm.weight", _HEAD, *_GATED),
    "bamboo": (_EMBEDDING, "output_norm.weight", _HEAD, *_GATED),
    "falcon": (
        *(_EMBEDDING, "output_norm.weight", "output_norm.bias", _HEAD),
        *("attn_norm.weight", "attn_norm.bias", "attn_norm_2.weight", "attn_norm_2.bias"),
        *("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down_t.weight"),
        *("fc1.weight", "fc2.weight"),
    ),
    "opt": (
        *(_EMBEDDING, "position_embd.weight", "output_norm.weight", "output_norm.bias"),
        *(f"{name}.{part}" for name in (*_OPT, "ffn_down_t") for part in ("weight", "bias")),
        *("fc1.weight", "fc2.weight"),
    ),
}
_BLOCK = re.compile(r"blk\.[0-9]+\.")


def powerinfer_architecture(
    architecture: Architecture, activation: Activation, where: str
) -> Architecture:
    """The architecture under which the original runs a model with predictors.

    Args:
        architecture: the model's.
        activation: of its FFN.
        where: the configuration, for messages.

    Raises:
        UnsupportedError: there is none; lists those there are.
    """
    name = _ARCHITECTURES.get((architecture.name, activation.kind))
    if name is None:
        known = sorted(f"{own} with {kind.value}" for own, kind in _ARCHITECTURES)
        raise UnsupportedError(
            f"{where}: PowerInfer's format has no {architecture.name} with {activation}; it has "
            f"{', '.join(known)}"
        )
    return get_architecture(name)


def renamed(
    metadata: Mapping[str, object], architecture: Architecture, new: Architecture
) -> dict[str, object]:
    """The keys of a model under another architecture."""
    own = keys.of_architecture(architecture.name, "")
    return {
        f"{new.name}.{key.removeprefix(own)}" if key.startswith(own) else key: value
        for key, value in metadata.items()
    } | {keys.ARCHITECTURE: new.name}


def check_is_known(
    targets: Sequence[Target], architecture: Architecture, metadata: Mapping[str, object]
) -> None:
    """Check that the original knows everything.

    Raises:
        UnsupportedError: a tensor has no place in its files, or a size has no key.
    """
    known = _KNOWN[architecture.name]
    for target in targets:
        if _BLOCK.sub("", target.name, count=1) not in known:
            raise UnsupportedError(
                f"{target.sources}: PowerInfer's format has no {target.name} in "
                f"{architecture.name} files; convert without predictors"
            )
    if keys.POST_NORM in metadata:
        raise UnsupportedError(
            f"PowerInfer's format has no {keys.POST_NORM}; convert without predictors"
        )
    sizes = [
        metadata[keys.of_architecture(architecture.name, key)]
        for key in (keys.HIDDEN_SIZE, keys.NUM_HEADS, keys.HEAD_DIM)
    ]
    hidden_size, num_heads, head_dim = (int(str(size)) for size in sizes)
    if num_heads * head_dim != hidden_size:
        raise UnsupportedError(
            f"{num_heads} heads of width {head_dim} are not the model's {hidden_size} numbers: "
            "PowerInfer's format has no such models; convert without predictors"
        )


def with_head(targets: Sequence[Target], architecture: Architecture) -> list[Target]:
    """The tensors with the output head written out, but of OPT, where it must be left out."""
    by_name = {target.name: target for target in targets}
    if architecture.name == "opt":
        by_name.pop(_HEAD, None)
    elif _EMBEDDING in by_name:
        by_name.setdefault(_HEAD, replace(by_name[_EMBEDDING], name=_HEAD))
    return list(by_name.values())
