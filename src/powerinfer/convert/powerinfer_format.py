"""What the original PowerInfer reads, and what its files therefore may and must hold."""

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
_WITH_BIASES = ("opt",)


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
    for target in targets:
        has_bias = target.name.endswith(".bias") and architecture.name not in _WITH_BIASES
        if target.name == "rope_freqs.weight" or (has_bias and "norm" not in target.name):
            raise UnsupportedError(
                f"{target.sources}: PowerInfer's format has no {target.name} in "
                f"{architecture.name} files; convert without predictors"
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
