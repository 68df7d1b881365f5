"""Settings of the hybrid backend."""

from dataclasses import dataclass, field

from powerinfer.errors import UnsupportedError
from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.hybrid.migration import OnlineSettings

__all__ = ["HybridSettings"]


@dataclass(frozen=True, slots=True)
class HybridSettings:
    """Settings of two devices that work together.

    Attributes:
        max_tokens: most tokens of a decode step, at most 8.
        max_texts: most texts whose next tokens are computed in several such steps. The GPU reads
            its weights for each, so more of them are cheaper in the way of a prompt.
        prefill_crossover: least number of prompt tokens for which cold weights are sent to the GPU
            instead of computed by the CPU. `offload.place` derives it from measured speeds.
        handoff: one of `build.HANDOFFS`.
        online: settings of moving neurons.
        chunk_bytes: size of each of two buffers for cold weights.
    """

    max_tokens: int = 8
    max_texts: int = 32
    prefill_crossover: int = 32
    handoff: str = "auto"
    online: OnlineSettings = field(default_factory=OnlineSettings)
    chunk_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        """Check the limit of the kernels.

        Raises:
            UnsupportedError: `max_tokens` exceeds it.
        """
        if not 1 <= self.max_tokens <= MAX_TOKENS:
            raise UnsupportedError(
                f"decode steps of {self.max_tokens} tokens; kernels serve 1 to {MAX_TOKENS}"
            )
