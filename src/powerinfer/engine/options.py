"""What a caller may set when a model is loaded, checked once and passed down frozen."""

from dataclasses import dataclass, fields
from typing import Any

from powerinfer import _plugins
from powerinfer.errors import PromptError, UnsupportedError
from powerinfer.models import SPARSITY_MODES, parse_activation
from powerinfer.ops.protocol import KVType

__all__ = ["EngineOptions", "engine_options"]

MAX_THREADS = 512
# Modes of contracts.md that need calibrated predictors, which this version does not have.
LATER_SPARSITY_MODES = ("auto", "mlp", "sign", "lowbit", "oracle")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of `LLM`.

    Attributes:
        context_length: tokens of prompt and answer together; None takes the model's, at most 4096.
        threads: 1 to 512; None takes the physical cores.
        kv_type: element type of the KV cache, `f16` or `q8_0`.
        activation: FFN activation that overrides the file's, such as `relu` or `fatrelu:0.01`.
        sparsity: `exact` skips neurons that do not fire, `off` computes all; None means exact where
            the activation allows it.
        kernels: instruction set of the native kernels, or `reference` for plain numpy; None takes
            the best this machine has.
        batch_size: most tokens of a prompt computed in one step.
        context_shift: when the context is full, drop the older half instead of raising an error.
        keep_tokens: tokens at the start that a context shift keeps (BOS is always kept).
        reuse_prefix: keep keys and values of the previous call where the tokens agree. Saves time
            in a conversation; the last bits of the result may depend on what came before.

    Raises:
        PromptError: a number is out of its range.
        UnsupportedError: a name is not one of those supported.
    """

    context_length: int | None = None
    threads: int | None = None
    kv_type: str = KVType.F16.value
    activation: str | None = None
    sparsity: str | None = None
    kernels: str | None = None
    batch_size: int = 512
    context_shift: bool = False
    keep_tokens: int = 0
    reuse_prefix: bool = False

    def __post_init__(self) -> None:
        _check_range("context_length", self.context_length, 1, 1 << 31)
        _check_range("threads", self.threads, 1, MAX_THREADS)
        _check_range("batch_size", self.batch_size, 1, 1 << 20)
        _check_range("keep_tokens", self.keep_tokens, 0, 1 << 31)
        if self.kv_type not in tuple(KVType):
            raise _plugins.unsupported("KV cache type", self.kv_type, tuple(KVType))
        if self.activation is not None:
            parse_activation(str(self.activation))
        if self.sparsity in LATER_SPARSITY_MODES:
            raise UnsupportedError(
                f"sparsity {self.sparsity!r} needs predictors, which this version does not run. "
                "Use 'exact' (skips only neurons that are zero) or 'off'."
            )
        if self.sparsity is not None and self.sparsity not in SPARSITY_MODES:
            raise _plugins.unsupported("sparsity", self.sparsity, SPARSITY_MODES)


def engine_options(options: dict[str, Any]) -> EngineOptions:
    """Build `EngineOptions` from keyword arguments.

    Raises:
        UnsupportedError: an option does not exist; names the nearest and all there are.
    """
    known = tuple(field.name for field in fields(EngineOptions))
    for name in options:
        if name not in known:
            raise _plugins.unsupported("option", name, known)
    return EngineOptions(**options)


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PromptError(
            f"option {name} must be a whole number from {low} to {high}, got {value!r}"
        )
