"""The format of each tensor is the one that llama.cpp's quantizer chooses for plain files."""

import json
from pathlib import Path

import pytest

from powerinfer.convert.quantize.file_types import find_file_type
from powerinfer.convert.quantize.mixture import KeptFormat, choose_formats
from powerinfer.gguf import GGUFFile, open_gguf
from quantize_cases import CASES, GOLDEN, IMPORTANCE_CASES, KEPT, TYPES, compact
from tiny_models import TinyModel, write_model

STORED = json.loads(GOLDEN.read_text())["types"]


def opened(folder: Path, model: TinyModel) -> GGUFFile:
    """Write a model and open it."""
    return open_gguf(write_model(folder / "m.gguf", model))


def formats(
    file: GGUFFile, file_type: str, *, has_importance: bool = False, **kept: str
) -> dict[str, str]:
    """Formats of all tensors, those that stay as they are too."""
    chosen = choose_formats(
        file,
        find_file_type(file_type),
        [KeptFormat(pattern, name) for pattern, name in kept.items()],
        has_importance=has_importance,
    )
    return {name: tensor.format for name, tensor in file.tensors.items()} | chosen


@pytest.mark.parametrize("name", CASES)
def test_types_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    file = opened(tmp_path, CASES[name])
    for file_type in TYPES:
        ours, theirs = compact(formats(file, file_type)), dict(STORED[name][file_type])
        for kept in KEPT:
            theirs.pop(kept, None)
            assert set(ours.pop(kept, {"f32": ""})) == {"f32"}
        assert ours == theirs, file_type
    if name in IMPORTANCE_CASES:
        for file_type in TYPES:
            chosen = formats(file, file_type, has_importance=True)
            assert compact(chosen) == STORED[name][f"{file_type}+imatrix"], file_type


def test_the_stored_choices_differ() -> None:
    """A rule that fell away would change something."""
    of_llama = STORED["llama"]
    assert of_llama["Q4_K_S"] != of_llama["Q4_K_M"]
    assert of_llama["Q4_0"] != of_llama["Q4_0+imatrix"]
    assert len(of_llama["Q4_K_M"]["ffn_down.weight"]) == 2
    assert "q5_1" in STORED["llama-80-layers"]["Q4_K_M"]["attn_v.weight"]
    assert len(STORED["falcon"]["Q4_K_M"]["ffn_down.weight"]) == 3
    assert "f16" in STORED["llama-odd"]["Q4_K_M"]["attn_q.weight"]
    assert "q8_0" in STORED["mixtral-8"]["Q4_0"]["attn_k.weight"]
