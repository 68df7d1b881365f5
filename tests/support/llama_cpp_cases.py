"""What is compared with llama.cpp: shared by the tests and by `scripts/make-goldens-llama-cpp`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer.quant import format_names
from tiny_gemma4 import Gemma4Layers
from tiny_models import TINY_MODELS, TinyModel, wide, write_model

__all__ = [
    "CASES",
    "FOLDER",
    "PERPLEXITY_BYTES",
    "POSITIONS",
    "TOKEN_IDS",
    "perplexity_text",
    "write_case",
]

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "llama_cpp"

TOKEN_IDS = tuple((7 + 61 * index + index * index) % 512 for index in range(40))
"""A fixed, unrelated sequence; no token repeats its neighbour."""

POSITIONS = (0, 13, 39)
"""Positions whose logits are kept."""

PERPLEXITY_BYTES = 20_000


# Families that multiply the embedding have a small one; else what blocks add would not be seen.
_GEMMA3 = {"embedding_spread": 1 / 8}
_GRANITE = {"embedding_spread": 1 / 12}

# YaRN with a ramp from the first pair to behind the last: it has no borders to round. llama.cpp
# rounds those of gpt-oss, whose own code does not, and reads no keys of where they lie.
_WHOLE_RAMP = {"rope.freq_base": 5.0, "rope.scaling.original_context_length": 160}

# llama.cpp takes 4096 whatever the file says.
_SMALLTHINKER_WINDOW = {"expert_gating_func": 1, "attention.sliding_window": 4096}


_FEW_EXPERTS = {"num_experts": 3, "intermediate_size": 256}
# Experts used and neurons of each differ by layer.
_PUZZLE = {
    "is_down_transposed": False,
    "ffn_sizes": (0, 512, 0, 256),
    "metadata": {"expert_used_count": np.array([0, 3, 0, 2], np.int32)},
}
# llama.cpp takes the last two layers before those that share for one with a window and one without.
_GEMMA4_SHARED = Gemma4Layers(
    (True, True, False, True, False),
    (64, 128),
    (1, 1),
    num_shared=2,
    per_layer_size=256,
    is_wide_when_shared=True,
)
# All experts are chosen: roundings in the state of a sequence would turn choices of later ones.
_ALL_USED = _FEW_EXPERTS | {"num_used_experts": 3}
_IN_BLOCKS: dict[str, dict[str, Any]] = {
    "mamba2": {},
    "nemotron_h": {},
    "nemotron_h_moe": _ALL_USED,
    "granitehybrid": _GRANITE,
    "gemma4": {"num_layers": 3, "gemma4": Gemma4Layers((True, True, False), (64, 128))},
    "gemma4-per-layer": {"gemma4": _GEMMA4_SHARED},
    "gemma4-experts": _ALL_USED,
}


def _case(name: str, format_name: str, **changes: Any) -> TinyModel:
    # llama.cpp takes a vocabulary of no tokens: only sizes matter here.
    model = wide(TINY_MODELS[name], format_name)
    more = changes.pop("metadata", {})
    return replace(model, has_vocabulary=False, metadata=model.metadata | more, **changes)


CASES = {name: _case("llama", name) for name in format_names()} | {
    "qwen2-f32": _case("qwen2", "f32"),
    "yarn-f32": _case("llama-yarn", "f32"),
    "tied-q8_0": _case("llama-tied", "q8_0"),
    "falcon-f32": _case("falcon", "f32", num_kv_heads=1),
    # llama.cpp does not know the key of the activation and runs GELU.
    "falcon-40b-f32": _case("falcon-40b-relu", "f32", activation=None),
    "arcee-f32": _case("arcee", "f32"),
    "nemotron-f32": _case("nemotron", "f32"),
    "nemotron-biases-f32": _case("nemotron-biases", "f32", is_down_transposed=False),
    "qwen3-f32": _case("qwen3", "f32", head_dim=128),
    "gemma3-f32": _case("gemma3", "f32", num_layers=3, **_GEMMA3),
    "gemma3-capped-f32": _case(
        "gemma3", "f32", metadata={"final_logit_softcapping": 2.0}, **_GEMMA3
    ),
    # Of the ways to store experts llama.cpp opens only this, one tensor of all, in these families.
    "mixtral-f32": _case("mixtral", "f32"),
    "qwen3moe-f32": _case("qwen3moe", "f32", head_dim=128),
    # llama.cpp reads its key norms as wide as the residual stream.
    "olmoe-f32": _case("olmoe", "f32", num_kv_heads=4),
    "granitemoe-f32": _case("granitemoe", "f32", **_GRANITE),
    "granitemoe-shared-f32": _case("granitemoe-shared", "f32", **_GRANITE),
    "smallthinker-f32": _case("smallthinker", "f32"),
    # Five layers, for a second without rotation; with four llama.cpp would rotate all.
    "smallthinker-window-f32": _case(
        "smallthinker", "f32", num_layers=5, metadata=_SMALLTHINKER_WINDOW
    ),
    "gpt-oss-f32": _case("gpt-oss", "f32", num_heads=8, metadata=_WHOLE_RAMP),
    "lfm2-f32": _case("lfm2", "f32"),
    "lfm2moe-f32": _case("lfm2moe", "f32"),
    "lfm2-q4_0": _case("lfm2", "q4_0"),
    "lfm2-q8_0": _case("lfm2", "q8_0"),
    "lfm2-q4_k": _case("lfm2", "q4_k"),
    "qwen35-f32": _case("qwen35", "f32"),
    "qwen35-equal-heads-f32": _case("qwen35-equal-heads", "f32", delta_rule=(3, 3, 64)),
    "qwen35moe-f32": _case("qwen35moe", "f32"),
    "qwen35-q4_0": _case("qwen35", "q4_0"),
    "qwen35-q8_0": _case("qwen35", "q8_0"),
    "qwen35-q4_k": _case("qwen35", "q4_k"),
    "qwen35moe-q4_k": _case("qwen35moe", "q4_k", num_used_experts=6),
    "mamba2-f32": _case("mamba2", "f32"),
    "nemotron_h-f32": _case("nemotron_h", "f32"),
    "nemotron_h_moe-f32": _case("nemotron_h_moe", "f32", **_FEW_EXPERTS),
    "nemotron_h_moe-latent-f32": _case("nemotron_h_moe-latent", "f32", is_down_transposed=False),
    "nemotron_h_moe-puzzle-f32": _case("nemotron_h_moe-latent", "f32", **_PUZZLE),
    "granitehybrid-f32": _case("granitehybrid", "f32", **_GRANITE),
    "granitehybrid-experts-f32": _case("granitehybrid-experts", "f32", **_FEW_EXPERTS, **_GRANITE),
    "gemma4-f32": _case("gemma4", "f32"),
    "gemma4-per-layer-f32": _case("gemma4-per-layer", "f32", gemma4=_GEMMA4_SHARED),
    "gemma4-experts-f32": _case("gemma4-experts", "f32", **_FEW_EXPERTS),
    **{
        f"{name}-{format_name}": _case(name, format_name, **changes)
        for name, changes in _IN_BLOCKS.items()
        for format_name in ("q4_0", "q8_0", "q4_k")
    },
    "mixtral-q4_0": _case("mixtral", "q4_0"),
    "mixtral-q8_0": _case("mixtral", "q8_0"),
    "qwen3moe-q4_k": _case("qwen3moe", "q4_k"),
    "smallthinker-q4_0": _case("smallthinker", "q4_0"),
    # Experts in a format of their own, as published files have them.
    "gpt-oss-mxfp4": _case(
        "gpt-oss",
        "q8_0",
        metadata=_WHOLE_RAMP,
        other_formats=dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), "mxfp4"),
    ),
}
"""Models by name: Llama in every tensor type, and what else llama.cpp computes like us."""

# Where activations are rounded, router logits shift by up to 0.04, by backend and by llama.cpp too.
# With these weights no choice that the kept logits follow is that near: the next expert is 0.06 or
# more behind in the first layer for all tokens, and 0.28 in the second for those of `POSITIONS`.
# (SmallThinker's first routers see the embedding, which nothing has rounded.)
_SEEDS = {"mixtral-q4_0": 13, "mixtral-q8_0": 10, "qwen3moe-q4_k": 34, "gpt-oss-mxfp4": 25}


def write_case(folder: Path, name: str) -> Path:
    """Write the model of `CASES[name]` into a folder; returns its file."""
    return write_model(folder / f"{name}.gguf", CASES[name], _SEEDS.get(name, 0))


def perplexity_text(data: Path) -> bytes:
    """The first bytes of the validation stories, cut after a whole line."""
    import zstandard

    packed = data / "text" / "tinystories.valid.txt.zst"
    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        text = reader.read(PERPLEXITY_BYTES)
    return text[: text.rindex(b"\n") + 1]
