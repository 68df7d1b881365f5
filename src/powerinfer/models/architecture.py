"""What a file in ``architectures/`` exports: the facts of one model family and its `forward`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from powerinfer import _plugins
from powerinfer.gguf import keys
from powerinfer.values import Activation, ActivationKind, FloatArray

__all__ = ["Architecture", "architecture_names", "get_architecture"]

_PACKAGE = "powerinfer.models.architectures"
_WHAT = "architecture"
_SILU = Activation(ActivationKind.SILU)
_RELU = Activation(ActivationKind.RELU)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Facts of a model family.

    Attributes:
        name: value of `general.architecture`, prefix of its keys and name of its file.
        forward: ``forward(ops, model, batch, cache, *, logits_for, observe=None)``, see `Model`.
        activation: of the FFN, where the file does not say.
        powerinfer_activation: the same in a file with PowerInfer's magic.
        is_rope_interleaved: pairs (2i, 2i+1) rotate together; else (i, i + half).
        norm_eps_key: key of the norms' epsilon without the architecture's prefix.
        required_biases: layer tensors that must have a bias; others may.
        hugging_face_names: GGUF tensor name (``{layer}`` for the number) to Hugging Face name.
    """

    name: str
    forward: Callable[..., FloatArray]
    hugging_face_names: Mapping[str, str]
    activation: Activation = _SILU
    powerinfer_activation: Activation = _RELU
    is_rope_interleaved: bool = True
    norm_eps_key: str = keys.RMS_NORM_EPSILON
    required_biases: frozenset[str] = frozenset()


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
