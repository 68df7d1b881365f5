"""Perplexity of trained models in each quantized format, against f32 products of the same weights.

The file with f32 weights holds what the quantized one decodes to, so that they differ in how
products are computed and in nothing else.
"""

import math
from pathlib import Path

import gguf
import numpy as np
import pytest

from k_quants import encode_k_quant
from powerinfer import LLM
from powerinfer.calibration.text import bundled_text
from powerinfer.engine.perplexity import scored_windows
from powerinfer.gguf import GGUFFile, TensorSpec, open_gguf, write_gguf
from powerinfer.quant import get_format
from powerinfer.store.default_model import default_model_path
from tolerances import PERPLEXITY

LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
# Tokens of a window.
WINDOW = 256


# In CI one K-quant: the other formats run on the smaller model below, and all of them in
# test_architectures_llama_cpp.py.
@pytest.mark.parametrize(
    "format_name",
    [
        *(pytest.param(name, marks=pytest.mark.thorough) for name in LEGACY),
        pytest.param("q4_k", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("q5_k", "q6_k")),
    ],
)
def test_embedded_model(format_name: str, tmp_path: Path) -> None:
    assert_same_perplexity(open_gguf(default_model_path()), format_name, tmp_path)


@pytest.mark.parametrize("format_name", LEGACY)
def test_stories260k(format_name: str, stories260k: Path, tmp_path: Path) -> None:
    """Rows of 64: K-quants need 256. Its first keys and values moved perplexity by 0.8 %."""
    assert_same_perplexity(open_gguf(stories260k), format_name, tmp_path)


def assert_same_perplexity(file: GGUFFile, format_name: str, folder: Path) -> None:
    """Perplexity of the file's model in a format, and of what its weights then are in F32."""
    quantized: list[TensorSpec] = []
    decoded: list[TensorSpec] = []
    for tensor in file.tensors.values():
        values = tensor.decode()
        spec: TensorSpec = (tensor.name, tensor.shape, "f32", values.view(np.uint8).reshape(-1))
        whole_blocks = tensor.shape[-1] % get_format(format_name).block_size == 0
        if len(tensor.shape) == 2 and whole_blocks:
            data = encode(values, format_name)
            quantized.append((tensor.name, tensor.shape, format_name, data))
            numbers = get_format(format_name).decode(data)
            spec = (tensor.name, tensor.shape, "f32", numbers.view(np.uint8))
        else:
            quantized.append(spec)
        decoded.append(spec)
    for name, tensors in ("quantized", quantized), ("f32", decoded):
        write_gguf(folder / f"{name}.gguf", file.metadata, tensors, types=file.types)
    got, expected = (perplexity(folder / f"{name}.gguf") for name in ("quantized", "f32"))
    assert math.isclose(got, expected, rel_tol=PERPLEXITY), (
        f"{format_name}: {got:.4f}, in f32 {expected:.4f}: {100 * (got / expected - 1):+.3f} %"
    )


def encode(values: np.ndarray, format_name: str) -> np.ndarray:
    """All blocks of f32[rows, columns], u8[num_bytes]."""
    if format_name.endswith("_k"):
        return encode_k_quant(values, format_name)
    kind = gguf.GGMLQuantizationType[format_name.upper()]
    return np.ascontiguousarray(gguf.quantize(values, kind)).reshape(-1)


def perplexity(path: Path) -> float:
    """Of the text in the package."""
    with LLM(path, device="cpu", threads=2, context_length=WINDOW) as llm:
        token_ids = llm.encode(bundled_text())
        scores = [score.token_logprobs for score in scored_windows(llm, token_ids, WINDOW)]
    return math.exp(-np.concatenate(scores).mean())
