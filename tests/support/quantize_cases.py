"""Models whose quantized types are compared with llama.cpp's; shared with the script of goldens."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_gemma4 import Gemma4Layers
from tiny_models import TINY_MODELS, TinyModel, wide

__all__ = ["CASES", "GOLDEN", "IMPORTANCE_CASES", "KEPT", "TYPES", "compact"]

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "llama_cpp" / "quantized_types.json"

TYPES = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "F16",
    "BF16",
)


def _deep(name: str, num_layers: int = 16) -> TinyModel:
    """With whole blocks in all rows, and enough layers to have first, middle and last ones."""
    return replace(
        wide(TINY_MODELS[name], "f16"),
        num_layers=num_layers,
        intermediate_size=256,
        num_kv_heads=1,
        vocab_size=64,
        has_vocabulary=False,
    )


def _narrow(name: str, num_layers: int) -> TinyModel:
    """With rows shorter than a block of 256."""
    model = replace(TINY_MODELS[name], vocab_size=64, has_vocabulary=False, format="f16")
    return replace(model, num_layers=num_layers)


def _gemma4(name: str, **layers: Any) -> TinyModel:
    windows = (True, True, False) * 3
    own = replace(TINY_MODELS[name].gemma4 or Gemma4Layers(), windows=windows, **layers)
    model = replace(TINY_MODELS[name], gemma4=own)
    return replace(_deep(name, len(windows)), gemma4=wide(model).gemma4)


CASES = {
    "llama": _deep("llama"),
    "llama-9-layers": _deep("llama", 9),
    "llama-tied": _deep("llama-tied", 3),
    "llama-narrow": _narrow("llama", 8),
    "llama-odd": replace(_narrow("llama", 2), hidden_size=48, num_heads=6, num_kv_heads=3),
    # Of the shape of 70B, whose value projections get more bits.
    "llama-80-layers": replace(_narrow("llama", 80), intermediate_size=32),
    "qwen2": _deep("qwen2", 8),
    "falcon": _deep("falcon", 32),
    "falcon-40b": _deep("falcon-40b-relu", 8),
    "mixtral-8": replace(_deep("mixtral", 8), num_experts=8),
    "qwen3moe": _deep("qwen3moe", 8),
    "granitemoe-shared": _deep("granitemoe-shared", 3),
    "gemma3": _deep("gemma3", 8),
    "qwen35": _deep("qwen35", 9),
    "qwen35moe": _deep("qwen35moe", 9),
    "mamba2": replace(_deep("mamba2", 3), pattern="MMM"),
    "nemotron_h": replace(_deep("nemotron_h", 12), pattern="M*-" * 4),
    "nemotron_h_moe-latent": replace(
        _deep("nemotron_h_moe-latent", 9), pattern="ME*" * 3, is_down_transposed=False
    ),
    "granitehybrid": replace(_deep("granitehybrid", 8), pattern="M*MM" * 2),
    "granitehybrid-experts": replace(_deep("granitehybrid-experts", 8), pattern="M*MM" * 2),
    "gemma4-per-layer": _gemma4("gemma4-per-layer", num_shared=2),
    "gemma4-experts": _gemma4("gemma4-experts", has_experts=True, has_full_values=False),
}
"""Models by name, as llama.cpp opens them."""

KEPT = ("ssm_alpha.weight", "ssm_beta.weight")
"""Tensors that llama.cpp quantizes and we do not."""

IMPORTANCE_CASES = ("llama", "mixtral-8")
"""Those that are quantized with an importance matrix too."""


def compact(formats: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Formats by tensor in short: by name without the layer, and by format, the layers it has."""
    found: dict[str, dict[str, list[int]]] = {}
    for name, format_name in formats.items():
        match = re.match(r"blk\.([0-9]+)\.", name)
        kind = found.setdefault(name[match.end() :] if match else name, {})
        kind.setdefault(format_name, []).append(int(match[1]) if match else -1)
    return {
        name: {each: _ranges(sorted(layers)) for each, layers in sorted(kinds.items())}
        for name, kinds in sorted(found.items())
    }


def _ranges(layers: list[int]) -> str:
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][-1] + 1 == layer:
            parts[-1][1:] = [layer]
        else:
            parts.append([layer])
    return "" if layers == [-1] else ",".join("-".join(map(str, part)) for part in parts)
