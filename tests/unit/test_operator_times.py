"""The timer between a model and its backend: nothing changes, everything is accounted for."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from powerinfer import LLM
from powerinfer.bench.operators import (
    DOWN,
    HEAD,
    NEURONS,
    PROJECTIONS,
    WHOLE_FFN,
    TimedOps,
    measure_operators,
)
from powerinfer.engine.step import TokenSequence

TOKENS = [1, 5, 9, 20, 33]


def _timed(llm: LLM) -> tuple[TimedOps, TokenSequence]:
    model = llm.loaded.model
    timed = TimedOps(model.ops, model.weights.output.matrix)
    copy = replace(model, ops=cast("Any", timed))
    return timed, TokenSequence(copy, copy.new_cache(64), 32)


def test_timing_changes_no_logits() -> None:
    with LLM(context_length=64) as llm:
        wanted = llm.new_sequence().extend(TOKENS)
        _, sequence = _timed(llm)
        np.testing.assert_array_equal(sequence.extend(TOKENS), wanted)


def test_bytes_of_a_decode_step_are_those_of_the_model() -> None:
    with LLM(context_length=64) as llm:
        model = llm.loaded.model
        timed, sequence = _timed(llm)
        sequence.extend(TOKENS)
        timed.clear()
        before = model.ops.counters.bytes_read
        sequence.extend([7])
        costs = timed.costs
        projections = sum(
            model.ops.matrix_bytes(linear.matrix)
            for layer in model.weights.layers
            for linear in (*layer.qkv, layer.attn_output)
        )
        assert costs[PROJECTIONS].bytes == projections
        assert costs[HEAD].bytes == model.ops.matrix_bytes(model.weights.output.matrix)
        assert costs[NEURONS].bytes + costs[DOWN].bytes == model.ops.counters.bytes_read - before
        assert all(cost.seconds >= 0 for cost in costs.values())


@pytest.mark.parametrize("sparsity", ["off", "exact"])
def test_rows_add_up(sparsity: str) -> None:
    with LLM(context_length=64, sparsity=sparsity) as llm:
        times = measure_operators(llm, steps=2)
    rows = times.rows()
    parts, total = rows[:-1], rows[-1]
    assert total["operator"] == "total"
    assert total["ms"] == pytest.approx(sum(row["ms"] for row in parts))
    assert total["gb"] == pytest.approx(sum(row["gb"] for row in parts))
    assert (times.gather_gb_per_s is None) == (sparsity == "off")
    compared = {row["operator"] for row in parts if row["of_plain"] is not None}
    ffn = {WHOLE_FFN} if sparsity == "off" else {NEURONS, DOWN}
    assert {PROJECTIONS, HEAD} | ffn <= compared
