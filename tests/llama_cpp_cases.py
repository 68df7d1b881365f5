"""What is compared with llama.cpp: shared by the tests and by `scripts/make-goldens-llama-cpp`."""

from dataclasses import replace
from pathlib import Path

from powerinfer.quant import format_names
from tiny_models import TINY_MODELS, TinyModel, wide

__all__ = ["CASES", "FOLDER", "PERPLEXITY_BYTES", "POSITIONS", "TOKEN_IDS", "perplexity_text"]

FOLDER = Path(__file__).resolve().parent / "golden" / "llama_cpp"

TOKEN_IDS = tuple((7 + 61 * index + index * index) % 512 for index in range(40))
"""A fixed, unrelated sequence; no token repeats its neighbour."""

POSITIONS = (0, 13, 39)
"""Positions whose logits are kept."""

PERPLEXITY_BYTES = 20_000


def _case(name: str, format_name: str) -> TinyModel:
    # llama.cpp takes a vocabulary of no tokens: only sizes matter here.
    return replace(wide(TINY_MODELS[name], format_name), has_vocabulary=False)


CASES = {name: _case("llama", name) for name in format_names()} | {
    "qwen2-f32": _case("qwen2", "f32"),
    "yarn-f32": _case("llama-yarn", "f32"),
    "tied-q8_0": _case("llama-tied", "q8_0"),
    "falcon-f32": replace(_case("falcon", "f32"), num_kv_heads=1),
    # llama.cpp does not know the key of the activation and runs GELU.
    "falcon-40b-f32": replace(_case("falcon-40b-relu", "f32"), activation=None),
    "arcee-f32": _case("arcee", "f32"),
    "nemotron-f32": _case("nemotron", "f32"),
    "nemotron-biases-f32": replace(_case("nemotron-biases", "f32"), is_down_transposed=False),
}
"""Models by name: Llama in every tensor type, and what else llama.cpp computes like us."""


def perplexity_text(data: Path) -> bytes:
    """The first bytes of the validation stories, cut after a whole line."""
    import zstandard

    packed = data / "text" / "tinystories.valid.txt.zst"
    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        text = reader.read(PERPLEXITY_BYTES)
    return text[: text.rindex(b"\n") + 1]
