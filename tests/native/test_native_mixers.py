"""Mixers with a state, and gates, against the numpy reference; the bits of their sequences."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_cases import (
    KERNELS,
    THREADS,
    both,
    host_ops,
    make_linear,
    numbers,
    same_bits,
    use_kernels,
)
from powerinfer import _core
from powerinfer.errors import ShapeError
from powerinfer.ops.protocol import LayerProgram
from powerinfer.values import Batch, FloatArray
from state_cases import (
    CASES,
    LENGTH,
    Case,
    DeltaCase,
    Part,
    ScanCase,
    ShortCase,
    StateScene,
    slots_batch,
)
from tolerances import assert_close

cases = pytest.mark.parametrize("case", CASES, ids=str)


def scene(kernels: str, case: Case, num_slots: int = 8, threads: int = 2) -> StateScene:
    return StateScene(host_ops(use_kernels(kernels, threads)), case, num_slots)


STEPS = (
    (Part(0, 0, 9, -1, 0), Part(1, 0, 1, -1, 1)),
    (Part(1, 1, 20, 1, 2), Part(0, 9, 11, 0, 3), Part(2, 0, 2, -1, 4)),
    (Part(0, 11, 12, 3, 0), Part(1, 20, 21, 2, 1), Part(2, 2, 3, 4, 5), Part(2, 2, 5, 4, 6)),
)
"""Texts of several lengths begin, go on, and fork."""


@cases
def test_agrees_with_the_reference(kernels: str, case: Case) -> None:
    native, reference = (StateScene(ops, case) for ops in both(kernels))
    for step in STEPS:
        for got, expected in zip(native.run(step), reference.run(step), strict=True):
            assert_close(got, expected, "one operation, float")


@cases
def test_bits_do_not_depend_on_threads(kernels: str, case: Case) -> None:
    scenes = [scene(kernels, case, threads=threads) for threads in THREADS]
    for step in STEPS:
        first, *others = [np.concatenate(it.run(step)) for it in scenes]
        assert all(same_bits(other, first) for other in others)


@cases
def test_a_batch_of_32_equals_each_alone(kernels: str, case: Case) -> None:
    shared = scene(kernels, case, 65)
    begun = shared.run([Part(text, 0, text % 5 + 1, -1, text) for text in range(32)])
    grown = shared.run([Part(t, t % 5 + 1, t % 5 + 2, t, 32 + t) for t in range(32)])
    for text, rows in enumerate(zip(begun, grown, strict=True)):
        alone = shared.run([Part(text, 0, text % 5 + 2, -1, 64)])[0]
        assert same_bits(np.concatenate(rows), alone), text


@given(
    cuts=st.tuples(*[st.sets(st.integers(1, LENGTH - 1), max_size=6)] * 3),
    case=st.sampled_from(CASES),
    kernels=st.sampled_from(KERNELS),
)
def test_a_text_may_be_cut_anywhere_and_meet_anybody(
    cuts: tuple[set[int], ...], case: Case, kernels: str
) -> None:
    """Three texts go on together, each in pieces of its own."""
    ends = [[*sorted(cut), LENGTH] for cut in cuts]
    shared, places = scene(kernels, case), [0, 0, 0]
    rows: list[list[FloatArray]] = [[], [], []]
    for step in range(max(len(each) for each in ends)):
        parts = []
        for text, each in enumerate(ends):
            if step < len(each):
                source = -1 if step == 0 else 2 * text + (step - 1) % 2
                target = 2 * text + step % 2
                parts.append(Part(text, places[text], each[step], source, target))
                places[text] = each[step]
        for part, got in zip(parts, shared.run(parts), strict=True):
            rows[part.text].append(got)
    for text, pieces in enumerate(rows):
        assert same_bits(np.concatenate(pieces), shared.whole(text))


@cases
def test_a_step_may_be_repeated(kernels: str, case: Case) -> None:
    """It leaves what it reads as it was."""
    it = scene(kernels, case)
    it.run([Part(0, 0, 7, -1, 0)])
    first = it.run([Part(0, 7, 12, 0, 1)])[0]
    assert same_bits(it.run([Part(0, 7, 12, 0, 1)])[0], first)
    assert same_bits(first, it.whole()[7:12])


@cases
def test_a_new_sequence_begins_with_zeros(kernels: str, case: Case) -> None:
    """A slot that nobody wrote holds zeros; a target may hold anything."""
    it = scene(kernels, case)
    it.run([Part(1, 0, 5, -1, 0)])
    new, zeros = it.run([Part(0, 0, 6, -1, 0)])[0], it.run([Part(0, 0, 6, 7, 1)])[0]
    assert same_bits(new, zeros)
    assert same_bits(it.run([Part(0, 6, 9, 0, 2)])[0], it.run([Part(0, 6, 9, 1, 3)])[0])


@cases
def test_nan_stays_in_its_sequence(kernels: str, case: Case) -> None:
    it = scene(kernels, case)
    parts = [Part(text, 0, 6, -1, text) for text in range(3)]
    inputs, batch = it.inputs(parts), slots_batch(parts)
    inputs[0][6:12] = np.nan
    out = case.run(it.ops, inputs, it.state, batch)
    assert np.isnan(out[6:12]).all()
    for text in (0, 2):
        assert same_bits(out[6 * text : 6 * text + 6], it.run([Part(text, 0, 6, -1, 5)])[0])
    after = it.run([Part(text, 6, 8, text, 3 + text) for text in range(3)])
    assert [bool(np.isfinite(rows).all()) for rows in after] == [True, case.num_taps == 1, True]


def test_gates_agree_with_the_reference(kernels: str) -> None:
    native, reference = both(kernels)
    x, g = numbers((3, 37), 1), 30 * numbers((3, 37), 2)
    g[1, 3] = np.nan
    got, expected = x.copy(), x.copy()
    native.gate(got, g)
    reference.gate(expected, g)
    assert np.isnan(got[1, 3])
    got[1, 3] = expected[1, 3] = 0
    assert_close(got, expected, "one operation, float")


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[6]], ids=str)
def test_recorded_steps_go_on_from_their_slots(kernels: str, case: Case) -> None:
    """A record has neither slots nor tokens of its own."""
    ops = use_kernels(kernels)
    it = StateScene(host_ops(ops), case)
    gates = make_linear(ops, "f32", (case.out_columns, 32), 9)
    linears = [make_linear(ops, "f32", (width, 32), i) for i, width in enumerate(case.columns)]

    def layers(x: FloatArray, batch: Batch, first: int, last: int) -> FloatArray:
        out = case.run(it.ops, ops.linear(x, linears), it.state, batch)
        ops.gate(out, ops.linear(x, [gates])[0])
        return out

    def step(position: int, key: object) -> FloatArray:
        old, new = 4 * (position % 2), 4 - 4 * (position % 2)
        sources = [old + text if position else -1 for text in range(4)]
        parts = [Part(t, position, position + 1, sources[t], new + t) for t in range(4)]
        program = LayerProgram(1, layers, lambda out: out, key)
        return ops.step(numbers((4, 32), position), slots_batch(parts), program)

    key = object()
    recorded = [step(position, key) for position in range(6)]
    assert len(ops._records) == 1
    for position, expected in enumerate(recorded):
        assert same_bits(step(position, None), expected)


def _delta(it: StateScene, parts: list[Part], number: int, columns: int) -> None:
    inputs = it.inputs(parts)
    inputs[number] = numbers((len(inputs[number]), columns), 1)
    it.case.run(it.ops, inputs, it.state, slots_batch(parts))


@pytest.mark.parametrize(
    ("number", "columns", "message"),
    [
        (0, 127, r"mixed is \[3, 127\], must be \[3, 128\]"),
        (1, 60, r"(gate|out) is \[3, 60\], must be \[3, 64\]"),
        (2, 5, r"beta is \[3, 5\], must be \[3, 4\]"),
        (3, 1, r"alpha is \[3, 1\], must be \[3, 4\]"),
    ],
)
def test_refuses_inputs_that_do_not_fit(number: int, columns: int, message: str) -> None:
    it = scene("portable", DeltaCase(4, 2, 4, 16, 16))
    with pytest.raises(ShapeError, match=message):
        _delta(it, [Part(0, 0, 3, -1, 0)], number, columns)


def test_refuses_weights_and_states_that_do_not_fit() -> None:
    ops = host_ops(use_kernels("portable"))
    parts = [Part(0, 0, 3, -1, 0)]
    good = StateScene(ops, DeltaCase(4, 2, 4, 16, 16))
    for bad, message in (
        (DeltaCase(17, 2, 4, 16, 16), "17 taps, must have 1 to 16"),
        (DeltaCase(0, 2, 4, 16, 16), "0 taps, must have 1 to 16"),
        (DeltaCase(4, 3, 4, 16, 16), "4 value heads, must have a multiple of its 3 key heads"),
        (DeltaCase(3, 2, 4, 16, 16), "1408 numbers, must have 1280"),
    ):
        with pytest.raises(ShapeError, match=message):
            bad.run(ops, StateScene(ops, good.case).inputs(parts), good.state, slots_batch(parts))
    scan = StateScene(ops, ScanCase(4, 2, 4, 8, 16))
    for bad_scan, message in (
        (ScanCase(17, 2, 4, 8, 16), "17 taps, must have 1 to 16"),
        (ScanCase(4, 3, 4, 8, 16), "4 heads, must have a multiple of its 3 groups"),
        (ScanCase(4, 2, 4, 0, 16), "none of them empty"),
        (ScanCase(3, 2, 4, 8, 16), "800 numbers, must have 704"),
        (ScanCase(4, 2, 4, 8, 15), r"x is \[3, 132\], must be \[3, 128\]"),
    ):
        with pytest.raises(ShapeError, match=message):
            bad_scan.run(ops, scan.inputs(parts), scan.state, slots_batch(parts))
    short = StateScene(ops, ShortCase(3, 8))
    with pytest.raises(ShapeError, match="16 numbers, must have 24"):
        ShortCase(4, 8).run(ops, short.inputs(parts), short.state, slots_batch(parts))
    with pytest.raises(ShapeError, match=r"x is \[3, 25\], must be \[3, 24\]"):
        short.case.run(ops, [numbers((3, 25), 1)], short.state, slots_batch(parts))
    with pytest.raises(ShapeError, match="the convolution has 24 entries, must have 27"):
        short.case.run(ops, [numbers((3, 27), 1)], short.state, slots_batch(parts))
    with pytest.raises(ShapeError, match=r"g is \[1, 2\], must be \[1, 3\]"):
        ops.gate(numbers((1, 3), 1), numbers((1, 2), 1))


@pytest.mark.parametrize(
    ("source", "target", "error", "message"),
    [
        (8, 0, IndexError, r"slot 8 of states is not in \[0, 8\)"),
        (-2, 0, IndexError, "slot -2"),
        (0, -1, IndexError, "slot -1"),
        (0, 8, IndexError, "slot 8"),
        (3, 3, ValueError, "belongs to one sequence"),
    ],
)
def test_refuses_slots_that_do_not_exist_or_are_read(
    source: int, target: int, error: type[Exception], message: str
) -> None:
    it = scene("portable", ShortCase(3, 8))
    with pytest.raises(error, match=message):
        it.run([Part(0, 0, 1, source, target)])


def test_refuses_batches_without_order_or_slots() -> None:
    it = scene("portable", ShortCase(3, 8))
    parts = [Part(0, 0, 2, -1, 0), Part(1, 0, 1, -1, 1)]
    batch, inputs = slots_batch(parts), it.inputs(parts)
    mixed = replace(batch, sequences=np.array([0, 1, 0], np.int32))
    with pytest.raises(ValueError, match="sequence 0 do not stand together"):
        it.case.run(it.ops, inputs, it.state, mixed)
    with pytest.raises(ValueError, match="names no slots"):
        it.case.run(it.ops, inputs, it.state, replace(batch, state_sources=None))
    with pytest.raises(ShapeError, match="2 sequences names 1 slots of states, must name one each"):
        it.case.run(it.ops, inputs, it.state, replace(batch, state_targets=np.zeros(1, np.int32)))


def test_a_layer_of_states_says_its_size() -> None:
    state = _core.StateLayer(3, 17)
    assert (state.num_slots, state.size, state.nbytes) == (3, 17, 3 * 32 * 4)
    with pytest.raises(ValueError, match="at least one slot"):
        _core.StateLayer(0, 17)
    with pytest.raises(ValueError, match="cannot be addressed"):
        _core.StateLayer(2**40, 2**40)
