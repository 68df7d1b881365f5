"""Which activation an FFN runs with: given by the user, by the file, or by the architecture.

Precedence: flag, then the key `powerinfer.ffn_activation`, then
PowerInfer's container rule (a file with its magic is a sparse model whose architecture alone tells
the activation), then the architecture's default.
"""

from powerinfer import _plugins
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, keys
from powerinfer.values import Activation, ActivationKind

__all__ = ["activation_metadata", "fatrelu", "parse_activation", "resolve_activation"]

_NAMES = tuple(sorted(kind.value for kind in ActivationKind))


def parse_activation(text: str) -> Activation:
    """Parse what `--activation` takes: a name, FatReLU with its threshold as `fatrelu:0.01`.

    Raises:
        UnsupportedError: an unknown name, or a threshold that is missing, misplaced or no number.
    """
    name, has_threshold, threshold = text.strip().lower().partition(":")
    if name not in _NAMES:
        raise _plugins.unsupported("activation", name, _NAMES)
    kind = ActivationKind(name)
    if kind is not ActivationKind.FATRELU:
        if has_threshold:
            raise UnsupportedError(f"activation {name} takes no threshold, got {text!r}")
        return Activation(kind)
    try:
        value = float(threshold)
    except ValueError:
        raise UnsupportedError(
            f"activation {text!r} needs a threshold, for example fatrelu:0.01"
        ) from None
    return fatrelu(value)


def resolve_activation(
    file: GGUFFile,
    asked: Activation | str | None,
    *,
    powerinfer_default: Activation,
    default: Activation,
) -> Activation:
    """Choose the activation by the precedence above.

    Args:
        file: the model file.
        asked: what the user asked for, or None.
        powerinfer_default: what the architecture means in a file with PowerInfer's magic.
        default: what the architecture means elsewhere.

    Raises:
        UnsupportedError: the user's name is unknown.
        GGUFError: the file's key is.
    """
    if asked is not None:
        return parse_activation(asked) if isinstance(asked, str) else asked
    if keys.FFN_ACTIVATION in file.metadata:
        return _activation_of_file(file)
    return powerinfer_default if file.magic == "PWRI" else default


def _activation_of_file(file: GGUFFile) -> Activation:
    name = file.get_str(keys.FFN_ACTIVATION)
    try:
        if name not in _NAMES:
            raise _plugins.unsupported("activation", name, _NAMES)
        if name == ActivationKind.FATRELU:
            return fatrelu(file.get_float(keys.FATRELU_THRESHOLD))
        return Activation(ActivationKind(name))
    except UnsupportedError as error:
        raise GGUFError(f"{file.path}: key {keys.FFN_ACTIVATION}: {error}") from error


def activation_metadata(activation: Activation) -> dict[str, object]:
    """The keys that say which activation a file has."""
    found: dict[str, object] = {keys.FFN_ACTIVATION: activation.kind.value}
    if activation.kind is ActivationKind.FATRELU:
        found[keys.FATRELU_THRESHOLD] = activation.threshold
    return found


def fatrelu(threshold: float) -> Activation:
    """FatReLU of a threshold.

    Raises:
        UnsupportedError: the threshold is negative or not finite.
    """
    # Below zero a neuron that is switched off would not be the one that contributes least.
    if not 0.0 <= threshold < float("inf"):
        raise UnsupportedError(f"a FatReLU threshold must be 0 or more, got {threshold:g}")
    return Activation(ActivationKind.FATRELU, threshold)
