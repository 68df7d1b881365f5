"""Checkpoints of Puzzle models: layers with experts of different sizes and numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import assert_error, invoke
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from powerinfer.errors import PowerInferError
from powerinfer.gguf import open_gguf
from puzzle_checkpoint import KINDS, SIZES, USED, puzzle_config, write_puzzle


@pytest.fixture(autouse=True)
def _without_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """These checkpoints have none."""
    monkeypatch.setattr(planning, "read_tokenizer", lambda _folder, _num_rows: {})
    monkeypatch.setattr(planning, "check_tokenizer", lambda _folder, _metadata: None)


def test_layers_keep_their_numbers(tmp_path: Path) -> None:
    report = convert(write_puzzle(tmp_path / "hf"), tmp_path / "m.gguf", is_plain=True)
    file = open_gguf(report.path)
    keys = {
        key.removeprefix("nemotron_h_moe."): np.asarray(value).tolist()
        for key, value in file.metadata.items()
    }
    assert (report.architecture, keys["block_count"]) == ("nemotron_h_moe", len(KINDS))
    assert keys["feed_forward_length"] == keys["expert_feed_forward_length"] == list(SIZES)
    assert keys["expert_used_count"] == list(USED)
    assert keys["attention.head_count_kv"] == [2 * (kind == "attention") for kind in KINDS]
    shapes = [file.tensors[f"blk.{number}.ffn_up_exps.weight"].shape for number in (1, 3)]
    assert shapes == [(6, 40, 24), (6, 24, 24)]


def _blocks(number: int, **changes: Any) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = puzzle_config()["block_configs"]
    blocks[number] |= changes
    return blocks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_configs": 3}, "block_configs is 3; expected a list of objects"),
        (
            {"block_configs": _blocks(0, block_type=None)},
            r"block_configs\[0\]: key block_type is missing",
        ),
        (
            {"block_configs": _blocks(0, block_type="no_op")},
            "key block_configs .*; supported: M, .*moe",
        ),
        (
            {"block_configs": _blocks(3, num_experts_per_tok=None)},
            r"block_configs\[3\]: key num_experts_per_tok is missing",
        ),
        (
            {"block_configs": _blocks(3, n_routed_experts=4)},
            r"block_configs\[3\]: key n_routed_experts is 4; supported: 6",
        ),
        (
            {"block_configs": _blocks(3, moe_intermediate_size=32)},
            r"experts\.0\.up_proj.*\[24, 24\]",
        ),
        (
            {"block_configs": _blocks(1, block_type="mlp")[:2], "model_type": "nemotron_h"},
            "supported: those of models with experts",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_puzzle(tmp_path / "hf", **changes)
    with pytest.raises(PowerInferError, match=message) as caught:
        convert(folder, tmp_path / "m.gguf")
    assert_error(invoke("convert", folder, "-o", tmp_path / "m.gguf"), str(caught.value))
    assert not (tmp_path / "m.gguf").exists()
