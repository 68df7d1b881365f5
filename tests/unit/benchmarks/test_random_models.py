"""Random models of benchmarks/families, as benchmarks/synthetic.py writes them."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from pages import ROOT
from powerinfer import LLM
from powerinfer.gguf import open_gguf

BENCHMARKS = ROOT / "benchmarks"
PLAIN = (
    *("ssm_a", "ssm_d", "ssm_norm.weight", "ssm_alpha.weight", "ssm_beta.weight"),
    *("conv1d.weight", "conv.weight", "gate_inp.weight"),
)


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules as the scripts find them."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "shape",
    [
        *("tiny-lfm2", "tiny-qwen35", "tiny-qwen35moe", "tiny-nemotron-h", "tiny-nemotron-h-moe"),
        *("tiny-gemma4", "tiny-gemma4-moe"),
    ],
)
def test_a_random_model_computes(tmp_path: Path, shape: str) -> None:
    synthetic = import_module("synthetic")
    path = tmp_path / "m.gguf"
    synthetic.write_synthetic(path, synthetic.SHAPES[shape], "q4_0", head_format="q6_k")
    formats = {name: tensor.format for name, tensor in open_gguf(path).tensors.items()}
    for name, tensor in open_gguf(path).tensors.items():
        is_tied = shape == "tiny-lfm2" or shape.startswith("tiny-gemma4")
        is_head = name == "output.weight" or (is_tied and name == "token_embd.weight")
        is_plain = len(tensor.shape) == 1 or name.endswith(PLAIN)
        wanted = "q6_k" if is_head else "f32" if is_plain else "q4_0"
        assert str(formats[name]) == wanted, name
    with LLM(path, context_length=64) as llm:
        sequence = llm.new_sequence()
        assert np.isfinite(sequence.extend(range(40))).all()
        assert np.isfinite(sequence.append(7)).all()
        has_states = not shape.startswith("tiny-gemma4")
        assert (llm.loaded.model.config.state_bytes > 0) == has_states


@pytest.mark.parametrize("shape", ["tiny-nemotron-h", "tiny-nemotron-h-moe"])
def test_planted_neurons_are_zero_as_often_as_asked(tmp_path: Path, shape: str) -> None:
    synthetic = import_module("synthetic")
    path = tmp_path / "m.gguf"
    synthetic.write_synthetic(path, synthetic.SHAPES[shape], "q4_0", zeros=0.9)
    assert open_gguf(path).get_float("powerinfer.synthetic.density") == pytest.approx(0.1)
    with LLM(path, context_length=64, sparsity="exact") as llm:
        counters = llm.loaded.model.ops.counters
        sequence = llm.new_sequence()
        for token in range(40):
            sequence.append(7 * token)
    assert counters.active / counters.predicted == pytest.approx(0.1, abs=0.03)


def test_zeros_are_planted_in_few_models_only(tmp_path: Path) -> None:
    synthetic = import_module("synthetic")
    for shape, chosen in (("tiny-lfm2", "q4_0"), ("tiny-nemotron-h", "q8_0")):
        with pytest.raises(SystemExit, match="shapes of Nemotron-H in q4_0 only"):
            synthetic.write_synthetic(
                tmp_path / "m.gguf", synthetic.SHAPES[shape], chosen, zeros=0.9
            )


@pytest.mark.parametrize(
    ("shape", "gb_per_token"),
    [
        *(("lfm2-1.2b", 0.69), ("qwen35-9b", 4.83), ("qwen35-35b-a3b", 1.91)),
        *(("nemotron-h-8b", 4.39), ("nemotron-3-nano-30b", 1.90)),
    ],
)
def test_shapes_have_the_bytes_of_the_published_models(shape: str, gb_per_token: float) -> None:
    """In Q4_0 with a head in Q6_K, counted from the published configurations."""
    sizes = import_module("synthetic").SHAPES[shape]
    num_bytes = 0.0
    for name, dims in sizes.tensors():
        is_head = name == ("output.weight" if sizes.has_head else "token_embd.weight")
        if name == "token_embd.weight" and not is_head:
            continue
        used = sizes.num_used / sizes.num_experts if "_exps" in name else 1
        is_plain = len(dims) == 1 or name.endswith(PLAIN)
        per_weight = 210 / 256 if is_head else 4 if is_plain else 18 / 32
        num_bytes += used * float(np.prod(dims)) * per_weight
    assert num_bytes / 1e9 == pytest.approx(gb_per_token, rel=0.02)
