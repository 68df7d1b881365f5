"""An importance matrix against llama.cpp's own, stored as its program wrote it.

``llama-imatrix -m mixtral.gguf -f TEXT -c 128 -t 1 --no-ppl -fa off -o mixtral.imatrix.gguf``, of
llama.cpp as in llama-cpp-python 0.3.36, where `mixtral.gguf` and TEXT are what this test writes.
"""

from pathlib import Path

import numpy as np
import pytest

from command_line import run_json
from llama_cpp_cases import FOLDER
from powerinfer.calibration.text import bundled_text
from powerinfer.convert.quantize.imatrix import ImportanceMatrix, read_imatrix
from tiny_models import TINY_MODELS, write_model

TEXT_CHARACTERS = 1000


@pytest.fixture(scope="module")
def theirs() -> ImportanceMatrix:
    return read_imatrix(FOLDER / "mixtral.imatrix.gguf")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> ImportanceMatrix:
    folder = tmp_path_factory.mktemp("imatrix")
    model = write_model(folder / "mixtral.gguf", TINY_MODELS["mixtral"])
    (folder / "text.txt").write_text(bundled_text()[:TEXT_CHARACTERS])
    path: Path = folder / "mixtral.imatrix.gguf"
    run_json("imatrix", "-m", model, "-f", folder / "text.txt", "-c", "128", "-o", path)
    return read_imatrix(path)


def test_the_same_text_was_read(theirs: ImportanceMatrix, ours: ImportanceMatrix) -> None:
    assert (theirs.chunk_count, theirs.chunk_size) == (ours.chunk_count, ours.chunk_size)
    assert theirs.datasets == ours.datasets == ("text.txt",)


def test_sums_and_counts_are_llama_cpps(theirs: ImportanceMatrix, ours: ImportanceMatrix) -> None:
    assert ours.entries.keys() == theirs.entries.keys()
    experts = theirs.entries["blk.0.ffn_down_exps.weight"]
    assert experts.sums.shape == (4, 48)
    assert len(set(experts.counts)) > 1
    for name, wanted in theirs.entries.items():
        found = ours.entries[name]
        assert np.array_equal(found.counts, wanted.counts), name
        # llama.cpp computes attention and the activation in half precision in places.
        np.testing.assert_allclose(
            found.sums, wanted.sums, rtol=1e-3, atol=1e-3 * wanted.sums.max()
        )


def test_quantize_takes_theirs(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["mixtral"])
    flags = ("--imatrix", FOLDER / "mixtral.imatrix.gguf")
    tensors = run_json("quantize", model, tmp_path / "q.gguf", "Q4_0", *flags)["tensors"]
    weighted = {tensor["name"] for tensor in tensors if tensor["importance"]}
    names = ("attn_k", "attn_output", "attn_q", "attn_v", "ffn_down_exps", "ffn_gate_exps")
    wanted = {f"blk.{layer}.{name}.weight" for layer in (0, 1) for name in (*names, "ffn_up_exps")}
    assert weighted == wanted
