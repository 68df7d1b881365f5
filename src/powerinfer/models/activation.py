"""Activation of an FFN, chosen by the user, the file or the architecture.

Precedence: flag, the key `powerinfer.ffn_activation`, PowerInfer's container rule (a file with its
magic is a sparse model whose activation follows from the architecture), the architecture's default.
"""

from powerinfer import _plugins
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, keys
from powerinfer.values import Activation, ActivationKind

__all__ = ["activation_metadata", "fatrelu", "parse_activation", "resolve_activation"]

_NAMES = tuple(sorted(kind.value for kind in ActivationKind))


def parse_activation(text: str) -> Activation:
    """Parse the value of `--activation`: a name, or `fatrelu:0.01` with a threshold.

    Raises:
        UnsupportedError: unknown name, or a threshold that is missing, misplaced or not a number.
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
        asked: the user's choice, or None.
        powerinfer_default: the architecture's activation in files with PowerInfer's magic.
        default: the architecture's activation in other files.

    Raises:
        UnsupportedError: the user's choice is unknown.
        GGUFError: the file's key is invalid.
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
    """Metadata keys that store an activation."""
    found: dict[str, object] = {keys.FFN_ACTIVATION: activation.kind.value}
    if activation.kind is ActivationKind.FATRELU:
        found[keys.FATRELU_THRESHOLD] = activation.threshold
    return found


def fatrelu(threshold: float) -> Activation:
    """Build a FatReLU; raise UnsupportedError if the threshold is negative or not finite."""
    # Below zero, the neurons switched off would not be those that contribute least.
    if not 0.0 <= threshold < float("inf"):
        raise UnsupportedError(f"a FatReLU threshold must be 0 or more, got {threshold:g}")
    return Activation(ActivationKind.FATRELU, threshold)
