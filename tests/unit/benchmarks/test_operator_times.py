"""The timer between a model and its backend: nothing changes, everything is accounted for."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.timing.operators import (
    DOWN,
    HEAD,
    NEURONS,
    PROJECTIONS,
    ROUTERS,
    WHOLE_FFN,
    TimedOps,
    measure_operators,
)
from powerinfer import LLM
from powerinfer.engine.direct import DirectSequence
from tiny_models import TINY_EXPERTS, write_model

TOKENS = [1, 5, 9, 20, 33]


def _timed(llm: LLM) -> tuple[TimedOps, DirectSequence]:
    model = llm.loaded.model
    timed = TimedOps(model.ops, model.weights.output.matrix)
    copy = replace(model, ops=cast("Any", timed))
    return timed, DirectSequence(copy, copy.new_cache(64), 32)


def test_timing_changes_no_logits() -> None:
    with LLM(context_length=64) as llm:
        wanted = llm.new_sequence().extend(TOKENS)
        _, sequence = _timed(llm)
        np.testing.assert_array_equal(sequence.extend(TOKENS), wanted)


def _file_bytes(llm: LLM, *names: str) -> int:
    """Of the matrices with such names, in all layers."""
    tensors = llm.loaded.file.tensors.values()
    return sum(tensor.num_bytes for tensor in tensors if tensor.name.endswith(names))


ATTENTION = tuple(f"attn_{name}.weight" for name in ("q", "k", "v", "output"))
# The embedded model's head is its embedding.
HEAD_WEIGHT = "token_embd.weight"


def test_a_dense_step_reads_every_matrix_of_the_file_once() -> None:
    with LLM(context_length=64, sparsity="off") as llm:
        times = measure_operators(llm, steps=2)
        rows = {row["operator"]: row for row in times.rows()}
        expected = {
            PROJECTIONS: _file_bytes(llm, *ATTENTION),
            WHOLE_FFN: _file_bytes(llm, "ffn_gate.weight", "ffn_up.weight", "ffn_down_t.weight"),
            HEAD: _file_bytes(llm, HEAD_WEIGHT),
        }
    for name, num_bytes in expected.items():
        assert rows[name]["gb"] * 1e9 == pytest.approx(num_bytes)
        assert (rows[name]["of_plain"] or 0) > 0
    assert NEURONS not in rows
    assert DOWN not in rows
    assert rows["total"]["gb"] * 1e9 > sum(expected.values())
    assert times.gather_gb_per_s is None
    assert times.predicted_share == 1


def test_a_sparse_step_reads_the_gate_and_the_rows_of_active_neurons() -> None:
    with LLM(context_length=64, sparsity="exact") as llm:
        times = measure_operators(llm, steps=2)
        gate, up, down = (
            _file_bytes(llm, f"ffn_{name}.weight") for name in ("gate", "up", "down_t")
        )
        attention = _file_bytes(llm, *ATTENTION)
        row_bytes = 2 * llm.loaded.model.config.hidden_size
    rows = {row["operator"]: row for row in times.rows()}
    assert rows[PROJECTIONS]["gb"] * 1e9 == pytest.approx(attention)
    assert gate < rows[NEURONS]["gb"] * 1e9 < gate + up
    # A neuron counts as active where both gate and up let it pass: its row of down is read.
    read = rows[DOWN]["gb"] * 1e9
    assert read == pytest.approx(times.active_share * down)
    assert 2 * read / row_bytes == pytest.approx(round(2 * read / row_bytes))
    assert 0 < times.active_share < 0.5
    assert times.gather_gb_per_s is not None
    assert all((rows[name]["of_plain"] or 0) > 0 for name in (NEURONS, DOWN))


def test_whole_matrices_are_those_of_the_chosen_experts(tmp_path: Path) -> None:
    """Shares are of the rows of all experts, among which a plain gather picks."""
    path = write_model(tmp_path / "m.gguf", TINY_EXPERTS["mixtral-drelu-transposed"])
    with LLM(path) as llm:
        times = measure_operators(llm, steps=2)
        gate = _file_bytes(llm, "ffn_gate_exps.weight")
        routers = _file_bytes(llm, "ffn_gate_inp.weight")
    assert times.costs[ROUTERS].bytes == routers
    assert times.costs[ROUTERS].seconds > 0
    assert times.predicted_share == 3 / 5
    assert 0.06 < times.active_share < 0.24
    assert times.dense_ffn_bytes == gate * 3 // 5
    assert times.gather_gb_per_s is not None


def test_the_parts_of_a_step_take_its_whole_time() -> None:
    with LLM(context_length=64) as llm:
        parts = list(measure_operators(llm, steps=2).rows())
    total = parts.pop()
    assert total["operator"] == "total"
    assert all(row["ms"] > 0 for row in parts)
    assert total["ms"] == pytest.approx(sum(row["ms"] for row in parts))
