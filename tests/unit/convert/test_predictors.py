"""Files with predictors: what PowerInfer's own loader demands, and nothing that it does not know.

The rules are those of its loader for `PWRI` files: the tensors it lists and no other, rows of F16.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_files import write_checkpoint
from converted_cases import save_without_torch
from powerinfer.convert.convert import ConvertReport, convert
from powerinfer.errors import CheckpointError, PowerInferError, UnsupportedError
from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.models import architecture_of, load_model, read_config
from powerinfer.ops.reference.ops import ReferenceOps
from predictor_folders import (
    LAYERS,
    LAYOUTS,
    PREDICTOR,
    predictor_weights,
    sparse_case,
    write_predictors,
)
from transformers_cases import CASES, Case
from transformers_weights import transformers_state

pytestmark = pytest.mark.usefixtures("without_tokenizers")

torch = pytest.importorskip("torch", reason="torch is not installed")


def converted(tmp_path: Path, case: Case, **options: Any) -> tuple[ConvertReport, GGUFFile]:
    folder = save_without_torch(tmp_path / "hf", case)
    predictors = write_predictors(tmp_path / "predictors")
    output = tmp_path / "out" / "m.gguf"
    report = convert(folder, output, predictors=predictors, **options)
    return report, open_gguf(output)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_file_is_what_powerinfer_loads(name: str, tmp_path: Path) -> None:
    architecture, outer, block = LAYOUTS[name]
    report, file = converted(tmp_path, sparse_case(name))
    assert (file.magic, report.magic, report.outtype) == ("PWRI", "PWRI", "f16")
    assert file.get_str("general.architecture") == report.architecture == architecture
    expected = outer | {
        f"blk.{layer}.{part}" for layer in range(LAYERS) for part in block | PREDICTOR
    }
    assert set(file.tensors) == expected
    for tensor in file.tensors.values():
        assert tensor.format == ("f16" if len(tensor.shape) == 2 else "f32")
    for key in ("context_length", "embedding_length", "feed_forward_length", "block_count"):
        assert file.get_int(f"{architecture}.{key}") > 0
    assert file.get_int("general.file_type") == 1
    assert file.get_float("powerinfer.sparse_threshold") == 0.25
    assert not any(key.startswith("llama.") for key in file.metadata) or architecture == "llama"
    for layer in range(LAYERS):
        for part, values in predictor_weights(layer).items():
            stored = file.tensors[f"blk.{layer}.{part}"].decode()
            np.testing.assert_array_equal(stored, values.astype(np.float16))
    config = read_config(file, architecture_of(file))
    kinds = {"llama-fatrelu": "fatrelu:0.25", "falcon-7b-relu": "relu", "bamboo": "drelu"}
    assert str(config.activation) == kinds.get(name, str(config.activation))


def test_a_tied_head_is_written_out_but_in_opt(tmp_path: Path) -> None:
    tied = replace(CASES["llama-relu"], config={"tie_word_embeddings": True})
    _, file = converted(tmp_path, tied)
    embedding = file.tensors["token_embd.weight"]
    np.testing.assert_array_equal(file.tensors["output.weight"].data, embedding.data)
    opt = sparse_case("opt")
    head = transformers_state(opt)["model.decoder.embed_tokens.weight"]
    state = transformers_state(opt) | {"lm_head.weight": head}
    config = opt.arguments | {"model_type": "opt"}
    folder = write_checkpoint(tmp_path / "opt", config, state)
    report = convert(folder, tmp_path / "opt.gguf", predictors=tmp_path / "predictors")
    assert "output.weight" not in open_gguf(report.path).tensors


def test_predictors_decide_which_neurons_run(tmp_path: Path) -> None:
    """By the rule of the original: fc2 . relu(fc1 . x) at or above the threshold."""
    _, file = converted(tmp_path, CASES["llama-relu"], outtype="f32")
    model = load_model(file, ReferenceOps())
    assert model.sparsity == "mlp"
    cache = model.new_cache()
    tokens = CASES["llama-relu"].token_ids
    got = model.forward(cache.batch([(0, tokens, 0)], [True]), cache)
    dense = load_model(file, ReferenceOps(), sparsity="off")
    cache = dense.new_cache()
    full = dense.forward(cache.batch([(0, tokens, 0)], [True]), cache)
    assert np.abs(got - full).max() > 0.01


def with_own_predictors(tmp_path: Path, **changes: Any) -> Path:
    case = CASES["mistral-drelu"]
    state = dict(transformers_state(case))
    for layer in range(LAYERS):
        for part, values in predictor_weights(layer).items():
            state[f"model.layers.{layer}.mlp.predictor.{part}"] = values
    config = case.arguments | {"model_type": "mistral", "hidden_act": "drelu"} | changes
    return write_checkpoint(tmp_path / "hf", config, state)


def test_predictors_inside_a_checkpoint(tmp_path: Path) -> None:
    folder = with_own_predictors(tmp_path)
    report = convert(folder, tmp_path / "m.gguf")
    file = open_gguf(report.path)
    assert (report.architecture, report.magic, report.outtype) == ("bamboo", "PWRI", "f16")
    values = predictor_weights(1)["fc2.weight"].astype(np.float16)
    np.testing.assert_array_equal(file.tensors["blk.1.fc2.weight"].decode(), values)
    assert "powerinfer.sparse_threshold" not in file.metadata
    plain = convert(folder, tmp_path / "plain.gguf", is_plain=True)
    assert (plain.architecture, plain.magic) == ("llama", "GGUF")
    assert not any("fc1" in name for name in open_gguf(plain.path).tensors)


def test_a_folder_goes_before_what_is_inside(tmp_path: Path) -> None:
    folder = with_own_predictors(tmp_path)
    predictors = write_predictors(tmp_path / "predictors", threshold=None)
    state = torch.load(predictors / "model_0.pt", weights_only=True)
    torch.save({name: 2 * values for name, values in state.items()}, predictors / "model_0.pt")
    file = open_gguf(convert(folder, tmp_path / "m.gguf", predictors=predictors).path)
    expected = 2 * predictor_weights(0)["fc1.weight"].astype(np.float16)
    np.testing.assert_array_equal(file.tensors["blk.0.fc1.weight"].decode(), expected)


def test_statistics_are_copied_beside_the_file(tmp_path: Path) -> None:
    converted(tmp_path, CASES["llama-relu"])
    for layer in range(LAYERS):
        name = f"activation/activation_{layer}.pt"
        copied = (tmp_path / "out" / name).read_bytes()
        assert copied == (tmp_path / "predictors" / name).read_bytes()
    again = tmp_path / "out" / "again.gguf"
    (tmp_path / "predictors" / "activation" / "activation.json").write_text("{}")
    convert(tmp_path / "hf", again, predictors=tmp_path / "predictors")
    assert (tmp_path / "out" / "activation" / "activation.json").read_text() == "{}"
    (tmp_path / "out" / "activation" / "activation_1.pt").write_bytes(b"of another model")
    third = tmp_path / "out" / "third.gguf"
    with pytest.raises(CheckpointError, match=r"activation_1\.pt: belongs to another model"):
        convert(tmp_path / "hf", third, predictors=tmp_path / "predictors")
    assert not third.exists()


def test_notes_say_what_the_original_does_differently(tmp_path: Path) -> None:
    report, _ = converted(tmp_path / "a", CASES["llama-fatrelu"])
    assert report.notes == ("the original PowerInfer runs ReLU instead of FatReLU",)
    report, _ = converted(tmp_path / "b", CASES["llama-relu"], outtype="q8_0")
    assert "F16, not in q8_0" in report.notes[0]


_LLAMA3 = CASES["llama3-divisors"].config


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (CASES["llama-gqa"], "has no llama with silu"),
        (CASES["arcee"], "has no arcee with relu2"),
        (CASES["falcon-7b"], "has no falcon with gelu"),
        (replace(CASES["llama-relu"], config=_LLAMA3), "has no rope_freqs.weight"),
        (replace(CASES["llama-relu"], config={"attention_bias": True}), "has no blk.0.attn_"),
        (replace(CASES["llama-relu"], config={"head_dim": 24}), "heads of width 24"),
        (CASES["mixtral-relu"], "has no blk.0.ffn_gate_inp.weight"),
        (sparse_case("opt-post-norm"), "has no powerinfer.post_norm"),
        (CASES["opt"], "OPT has 2050 positions"),
    ],
)
def test_models_that_the_format_does_not_have(case: Case, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        converted(tmp_path, case)
    assert problem in str(caught.value)


def _damage(folder: Path, state: Mapping[str, Any], name: str = "model_1.pt") -> None:
    torch.save(dict(state), folder / name)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (None, "model_1.pt is missing"),
        ({"fc1.weight": torch.ones(4, 64)}, "holds fc1.weight; expected fc1.weight and fc2.weight"),
        (
            {"fc1.weight": torch.ones(4, 63), "fc2.weight": torch.ones(96, 4)},
            "'fc1.weight' has the shape [4, 63]",
        ),
        (
            {"fc1.weight": torch.ones(4, 64), "fc2.weight": torch.ones(96, 5)},
            "'fc2.weight' has the shape [96, 5]",
        ),
        (
            {"fc1.weight": torch.full((4, 64), torch.nan), "fc2.weight": torch.ones(96, 4)},
            "NaN",
        ),
    ],
)
def test_damaged_predictors(state: Any, problem: str, tmp_path: Path) -> None:
    folder = save_without_torch(tmp_path / "hf", CASES["llama-relu"])
    predictors = write_predictors(tmp_path / "predictors")
    (predictors / "model_1.pt").unlink()
    if state is not None:
        _damage(predictors, state)
    with pytest.raises(PowerInferError) as caught:
        convert(folder, tmp_path / "m.gguf", predictors=predictors)
    assert problem in str(caught.value) and str(predictors) in str(caught.value)
    assert not (tmp_path / "m.gguf").exists()


def test_predictors_of_another_depth(tmp_path: Path) -> None:
    folder = save_without_torch(tmp_path / "hf", CASES["llama-relu"])
    predictors = write_predictors(tmp_path / "predictors")
    _damage(predictors, {}, "model_2.pt")
    with pytest.raises(CheckpointError, match="of 3 layers, the model has 2"):
        convert(folder, tmp_path / "m.gguf", predictors=predictors)
    with pytest.raises(CheckpointError, match="no such folder"):
        convert(folder, tmp_path / "m.gguf", predictors=tmp_path / "none")


def test_some_layers_without_predictors(tmp_path: Path) -> None:
    folder = with_own_predictors(tmp_path, num_hidden_layers=2)
    state = dict(transformers_state(CASES["mistral-drelu"]))
    own = predictor_weights(0)
    state |= {f"model.layers.0.mlp.predictor.{part}": values for part, values in own.items()}
    config = json.loads((folder / "config.json").read_text())
    write_checkpoint(folder, config, state)
    with pytest.raises(CheckpointError, match=r"blk\.1\.fc1\.weight is missing"):
        convert(folder, tmp_path / "m.gguf")
