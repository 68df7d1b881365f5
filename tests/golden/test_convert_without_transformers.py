"""Checkpoints that transformers does not write: SmallThinker's, and gpt-oss's in MXFP4."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends import BACKENDS, using
from checkpoint_files import write_checkpoint
from converted_cases import save_without_torch
from numpy_smallthinker import TOKEN_IDS, WINDOW, SmallThinker
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.quant import get_format
from smallthinker_checkpoint import EXPERTS, LAYERS, smallthinker_config, smallthinker_state
from tolerances import assert_close
from transformers_cases import CASES
from transformers_weights import transformers_state

FloatArray = npt.NDArray[np.float32]

CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@pytest.fixture(autouse=True)
def _without_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "read_tokenizer", lambda _folder, _num_rows: {})
    monkeypatch.setattr(planning, "check_tokenizer", lambda _folder, _metadata: None)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_plain", [False, True], ids=["rows", "plain"])
@pytest.mark.parametrize("has_window", [False, True], ids=["4B", "21B"])
@pytest.mark.parametrize("is_softmax", [False, True], ids=["sigmoid", "softmax"])
def test_smallthinker(
    backend: str, tmp_path: Path, *, is_plain: bool, has_window: bool, is_softmax: bool
) -> None:
    config = smallthinker_config(is_softmax=is_softmax, has_window=has_window)
    state = smallthinker_state(is_tied=not has_window)
    folder = write_checkpoint(tmp_path / "hf", config, state, shards=2)
    convert(folder, tmp_path / "m.gguf", is_plain=is_plain)
    file = open_gguf(tmp_path / "m.gguf")
    with using(backend) as ops:
        model = load_model(file, ops)
        windows = [layer.window for layer in model.config.attention]
        assert windows == ([None, *[WINDOW] * 3, None] if has_window else [None] * LAYERS)
        cache = model.new_cache()
        got = model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)
    assert_close(got, SmallThinker(file).logits(TOKEN_IDS), "native float")


def test_experts_of_smallthinker_are_where_they_were(tmp_path: Path) -> None:
    """The oracle above reads the same file, so names and rows are compared here."""
    config = smallthinker_config(is_softmax=True, has_window=True)
    state = smallthinker_state(is_tied=False)
    folder = write_checkpoint(tmp_path / "hf", config, state)
    file = open_gguf(convert(folder, tmp_path / "m.gguf").path)
    for number in range(LAYERS):
        moe = f"model.layers.{number}.block_sparse_moe"
        for name in ("gate", "up", "down"):
            suffix = "_t" if name == "down" else ""
            experts = file.tensors[f"blk.{number}.ffn_{name}_exps{suffix}.weight"].decode()
            for expert in range(EXPERTS):
                values = state[f"{moe}.experts.{expert}.{name}.weight"]
                np.testing.assert_array_equal(experts[expert], values.T if suffix else values)
        router = file.tensors[f"blk.{number}.ffn_gate_inp.weight"]
        np.testing.assert_array_equal(router.decode(), state[f"{moe}.primary_router.weight"])
    head = file.tensors["output.weight"].decode()
    np.testing.assert_array_equal(head, state["lm_head.weight"])


def test_a_layout_of_rotation_that_files_cannot_say(tmp_path: Path) -> None:
    config = smallthinker_config(is_softmax=True, has_window=True)
    config["rope_layout"] = [1] * LAYERS
    folder = write_checkpoint(tmp_path / "hf", config, smallthinker_state(is_tied=False))
    with pytest.raises(UnsupportedError, match="rope_layout"):
        convert(folder, tmp_path / "m.gguf")


def mxfp4_state(case_name: str) -> tuple[dict[str, Any], dict[str, FloatArray]]:
    """Random blocks in the place of experts, and the numbers they mean."""
    random = np.random.default_rng(8)
    state: dict[str, Any] = dict(transformers_state(CASES[case_name]))
    numbers: dict[str, FloatArray] = {}
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = state.pop(name).shape
        blocks = random.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = random.integers(121, 126, (experts, rows, columns // 32), np.uint8)
        state[f"{name}_blocks"], state[f"{name}_scales"] = blocks, scales
        # Neighbours share a byte, the first in the low half.
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
        values = np.where(codes & 8, -CODES[codes & 7], CODES[codes & 7])
        scaled = values * np.exp2(scales.astype(np.float32) - 127)[..., None]
        numbers[name] = scaled.reshape(experts, rows, columns).astype(np.float32)
    return state, numbers


def test_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    case = CASES["gpt-oss"]
    state, numbers = mxfp4_state("gpt-oss")
    config = case.arguments | {"model_type": "gpt_oss"}
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    packed = write_checkpoint(tmp_path / "packed", config, state)
    file = open_gguf(convert(packed, tmp_path / "packed.gguf").path)
    for name, values in numbers.items():
        layer = name.split(".")[2]
        parts = {"down": values}
        if "gate_up" in name:
            parts = {"gate": values[:, ::2], "up": values[:, 1::2]}
        for part, expected in parts.items():
            tensor = file.tensors[f"blk.{layer}.ffn_{part}_exps.weight"]
            assert tensor.format == "mxfp4"
            np.testing.assert_array_equal(tensor.decode(), expected)


def test_gpt_oss_in_mxfp4_computes_as_in_f32(tmp_path: Path) -> None:
    case = CASES["gpt-oss"]
    state, numbers = mxfp4_state("gpt-oss")
    config = case.arguments | {"model_type": "gpt_oss"}
    wide = {name: values for name, values in state.items() if "_blocks" not in name}
    wide = {name: values for name, values in wide.items() if "_scales" not in name}
    wide |= {name: values.swapaxes(1, 2) for name, values in numbers.items()}
    results = []
    for name, tensors in (("packed", state), ("wide", wide)):
        folder = write_checkpoint(tmp_path / name, config, tensors)
        with using("reference") as ops:
            model = load_model(open_gguf(convert(folder, tmp_path / f"{name}.gguf").path), ops)
            cache = model.new_cache()
            batch = cache.batch([(0, case.token_ids, 0)], [True])
            results.append(model.forward(batch, cache))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


def test_blocks_without_scales(tmp_path: Path) -> None:
    state, _ = mxfp4_state("gpt-oss")
    config = CASES["gpt-oss"].arguments | {"model_type": "gpt_oss"}
    name = "model.layers.1.mlp.experts.down_proj_scales"
    scales = state.pop(name)
    folder = write_checkpoint(tmp_path / "a", config, state)
    with pytest.raises(CheckpointError, match="down_proj_scales is missing"):
        convert(folder, tmp_path / "m.gguf")
    folder = write_checkpoint(tmp_path / "b", config, state | {name: scales[:, :-1]})
    with pytest.raises(CheckpointError, match="with scales"):
        convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_other_types_are_those_of_their_encoder(outtype: str, tmp_path: Path) -> None:
    folder = save_without_torch(tmp_path, CASES["llama-gqa"])
    file = open_gguf(convert(folder, tmp_path / "m.gguf", outtype=outtype).path)
    wide = open_gguf(convert(folder, tmp_path / "wide.gguf").path)
    assert file.get_int("general.file_type") == {"f16": 1, "q8_0": 7}[outtype]
    for name, tensor in file.tensors.items():
        values = wide.tensors[name].decode()
        assert tensor.format == (outtype if values.ndim > 1 else "f32")
        expected = get_format(tensor.format).encode(values).reshape(-1)
        np.testing.assert_array_equal(tensor.data, expected)


def test_bf16_to_f16_in_every_bit(tmp_path: Path) -> None:
    """All numbers of BF16 that F16 has room for, small ones rounded as numpy rounds them."""
    from checkpoint_files import BF16
    from powerinfer.convert.arrange import Piece
    from powerinfer.convert.checkpoint import CheckpointTensor
    from powerinfer.convert.encode import encoded

    bits = np.arange(1 << 16, dtype=np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    bits = BF16(bits[np.abs(values) < 65520]).bits
    source = CheckpointTensor("w", "bf16", bits, bits.shape, tmp_path)
    got = encoded((Piece(source, bits), bits, None), "f16")
    expected = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float16)
    np.testing.assert_array_equal(got, expected.view(np.uint8))
