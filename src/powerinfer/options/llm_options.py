"""The keyword arguments of `LLM` for type checkers and editors.

They understand literal declarations only, so this repeats the fields of `EngineOptions`; a test
compares the two.
"""

from pathlib import Path
from typing import Literal, TypedDict

from powerinfer.options.vram_budget import VramBudget

__all__ = ["LLMOptions"]


class LLMOptions(TypedDict, total=False):
    """Keyword arguments of `LLM`; `powerinfer.options.options` describes each."""

    context_length: int | None
    threads: int | None
    kv_type: Literal["f16", "q8_0"]
    activation: str | None
    sparsity: str | None
    activation_threshold: float | str | None
    max_ffn_error: float | None
    recall: float | None
    measure_recall: bool
    head: str
    device: str
    vram_budget: str | float | VramBudget | None
    gpu_index: Path | str | None
    reset_gpu_index: bool
    disable_gpu_index: bool
    online: bool | None
    solver: str | None
    draft: str
    draft_model: Path | str | None
    draft_memory: bool
    context_shift: bool
    keep_tokens: int
    reuse_prefix: bool
    parallel: int
    kv_tokens: int | None
    state_cache: int
    state_interval: int
    mmap: bool
    kernels: str | None
    batch_size: int
