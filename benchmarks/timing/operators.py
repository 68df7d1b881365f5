"""Seconds and bytes per operator of a decode step, compared with plain memory reads."""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, TypedDict, TypeVar, cast

import numpy as np

from powerinfer.bench.read_bandwidth import PlainReader
from powerinfer.engine.direct import DirectSequence
from powerinfer.engine.llm import LLM
from powerinfer.gguf import Tensor
from powerinfer.models import Model
from powerinfer.ops.backend import Activations, Backend, Matrix, SomeLinear
from powerinfer.ops.cpu.speed import RowReader
from powerinfer.ops.protocol import LayerProgram
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray

__all__ = [
    "PROMPT_TOKENS",
    "OperatorCost",
    "OperatorTimes",
    "TimedOps",
    "gather_read_gb_per_s",
    "measure_operators",
]

Given = ParamSpec("Given")
Result = TypeVar("Result")

PROJECTIONS = "attention projections"
ROUTERS = "routers"
PREDICTORS = "predictors"
NEURONS = "gate and up rows"
DOWN = "down rows"
WHOLE_FFN = "FFN"
HEAD = "head"
ATTENTION = "attention"
STATES = "states: convolutions, delta rules, scans"
NATIVE_REST = "norms, rotation, sums"
PYTHON = "Python and sampling"
OPERATORS = (
    PROJECTIONS,
    ROUTERS,
    PREDICTORS,
    NEURONS,
    DOWN,
    HEAD,
    ATTENTION,
    STATES,
    NATIVE_REST,
    PYTHON,
)

_REST = ("embed", "rms_norm", "layer_norm", "rope_and_store", "add", "gate")
PROMPT_TOKENS = 512
"""Enough for every expert to be chosen: its first token waits until its matrices are copied."""
_GATHERED_AHEAD = (0, 4 << 10, 12 << 10, 24 << 10)
# Tensors whose rows are neurons.
_NEURON_TENSORS = tuple(
    f".ffn_{name}.weight"
    for name in ("gate", "up", "down_t", "gate_exps", "up_exps", "down_exps_t")
)


class OperatorRow(TypedDict):
    """One row of a table; `of_plain` is its rate relative to a plain read."""

    operator: str
    ms: float
    gb: float
    gb_per_s: float | None
    plain_gb_per_s: float | None
    of_plain: float | None


@dataclass(slots=True)
class OperatorCost:
    """Accumulated cost of one operator."""

    seconds: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Average costs of one decode step.

    Attributes:
        read_gb_per_s: rate of a plain read of the file's weights.
        gather_gb_per_s: rate of a plain read of as many scattered neuron rows as are active; None
            if the file does not store neurons as rows or none is skipped.
        dense_ffn_bytes: bytes of gate and up that are read for every token.
        active_share: share of all experts' neurons whose result was used.
    """

    costs: dict[str, OperatorCost]
    read_gb_per_s: float
    gather_gb_per_s: float | None
    dense_ffn_bytes: float
    active_share: float
    predicted_share: float

    def rows(self) -> list[OperatorRow]:
        """One row per operator with time, as JSON values, and a row with the sum.

        `of_plain` compares with a plain read, for gathered rows with a plain gather.
        """
        bounds = dict.fromkeys((PROJECTIONS, ROUTERS, PREDICTORS, HEAD), self.read_gb_per_s)
        bounds[NEURONS] = self._neurons_bound()
        bounds[DOWN] = self.gather_gb_per_s or self.read_gb_per_s
        # Without gathered rows of down the FFN is not split into parts.
        names = {} if self.costs[DOWN].seconds else {NEURONS: WHOLE_FFN}
        out = [
            _row(names.get(name, name), cost, bounds.get(name))
            for name, cost in self.costs.items()
            if cost.seconds
        ]
        seconds = sum(cost.seconds for cost in self.costs.values())
        total = OperatorCost(seconds, sum(cost.bytes for cost in self.costs.values()))
        return [*out, _row("total", total, None)]

    def _neurons_bound(self) -> float:
        """GB/s for a mix of rows read whole and rows gathered."""
        num_bytes = self.costs[NEURONS].bytes
        if self.gather_gb_per_s is None or not num_bytes:
            return self.read_gb_per_s
        gathered = max(0.0, num_bytes - self.dense_ffn_bytes)
        slow = self.dense_ffn_bytes / self.read_gb_per_s + gathered / self.gather_gb_per_s
        return num_bytes / slow


def _row(name: str, cost: OperatorCost, bound: float | None) -> OperatorRow:
    rate = cost.bytes / cost.seconds / 1e9 if cost.bytes else None
    return {
        "operator": name,
        "ms": cost.seconds * 1e3,
        "gb": cost.bytes / 1e9,
        "gb_per_s": rate,
        "plain_gb_per_s": bound,
        "of_plain": rate / bound if rate is not None and bound else None,
    }


@dataclass(slots=True)
class _OperatorClock:
    """Adds up the cost of calls to a backend."""

    ops: Backend
    head: Matrix
    costs: dict[str, OperatorCost] = field(default_factory=dict)

    def clear(self) -> None:
        """Reset all costs."""
        self.costs = {name: OperatorCost() for name in OPERATORS}

    def timed(
        self, operator: str, call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Result:
        """Call a function and count its time."""
        started = time.perf_counter()
        result = call(*args, **named)
        self.costs[operator].seconds += time.perf_counter() - started
        return result

    def timed_linear(
        self,
        call: Callable[[object, Sequence[SomeLinear], BoolArray | None], Result],
        x: object,
        layers: Sequence[SomeLinear],
        is_prompt: BoolArray | None = None,
    ) -> Result:
        """Call a product of one input with several matrices and count its time and bytes."""
        operator = HEAD if layers[0].matrix is self.head else PROJECTIONS
        self.costs[operator].bytes += sum(self.ops.matrix_bytes(each.matrix) for each in layers)
        return self.timed(operator, call, x, layers, is_prompt)

    def timed_ffn(
        self, operator: str, call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Result:
        """Call one FFN block; the backend's counters divide its time among the parts."""
        counters = self.ops.counters
        before = copy(counters)
        result = self.timed(operator, call, *args, **named)
        parts = {
            PREDICTORS: (
                counters.predictor_bytes - before.predictor_bytes,
                counters.predictor_s - before.predictor_s if operator != PREDICTORS else 0.0,
            ),
            DOWN: (counters.down_bytes - before.down_bytes, counters.down_s - before.down_s),
            ROUTERS: (
                counters.router_bytes - before.router_bytes,
                counters.router_s - before.router_s,
            ),
        }
        self._add(NEURONS, counters.bytes_read - before.bytes_read, 0.0)
        for part, (num_bytes, seconds) in parts.items():
            self._add(part, num_bytes, seconds)
            self._add(NEURONS, -num_bytes, 0.0)
            self._add(operator, 0, -seconds)
        return result

    def _add(self, operator: str, num_bytes: int, seconds: float) -> None:
        cost = self.costs[operator]
        cost.bytes += num_bytes
        cost.seconds += seconds


class TimedOps:
    """Forwards every call to another backend and adds up the costs of each operator.

    Passes for `powerinfer.ops.protocol.Ops`: attributes that are not timed are the backend's own.
    """

    def __init__(self, ops: Backend, head: Matrix) -> None:
        # The wrapped calls kept below refer to the clock, which does not refer back.
        self._clock = _OperatorClock(ops, head)
        self.clear()

    @property
    def costs(self) -> dict[str, OperatorCost]:
        """Accumulated costs by operator."""
        return self._clock.costs

    def clear(self) -> None:
        """Reset all costs."""
        self._clock.clear()

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[Activations]) -> FloatArray:
        """Run each operation by itself: those of a recorded program would not be timed."""
        return self._clock.ops.step(x, batch, replace(program, key=None))

    def __getattr__(self, name: str) -> object:
        """Return the backend's attribute, wrapped if it is timed, and cache it."""
        clock = self._clock
        found: Callable[..., object] = getattr(clock.ops, name)
        if name == "start_ffn":
            # On a CPU the work begins, and is timed, when the result is requested.
            found = partial(partial, cast("Callable[..., object]", self.ffn))
        elif name in ("ffn", "ffn_active", "predict"):
            found = partial(clock.timed_ffn, PREDICTORS if name == "predict" else NEURONS, found)
        elif name == "attention":
            found = partial(clock.timed, ATTENTION, found)
        elif name in ("short_conv", "delta_rule", "selective_scan"):
            found = partial(clock.timed, STATES, found)
        elif name == "linear":
            found = partial(clock.timed_linear, found)
        elif name in _REST:
            found = partial(clock.timed, NATIVE_REST, found)
        else:
            return found
        self.__dict__[name] = found
        return found


def measure_operators(
    llm: LLM, steps: int = 16, seed: int = 0, prompt_tokens: int = 32
) -> OperatorTimes:
    """Decode random tokens with every operation timed.

    Args:
        llm: loaded with a context of `prompt_tokens` plus twice the steps.
        steps: single-token steps to measure, after as many warm-up steps.
        seed: of the tokens.
        prompt_tokens: read before them.
    """
    loaded = llm.loaded
    model = loaded.model
    read_gb_per_s = _plain_read_gb_per_s(llm)
    timed = TimedOps(model.ops, model.weights.output.matrix)
    random = np.random.default_rng(seed)
    sequence = _timed_sequence(llm, timed)
    vocab_size = model.config.vocab_size
    sequence.extend(random.integers(0, vocab_size, prompt_tokens).tolist())
    for token in random.integers(0, vocab_size, steps).tolist():
        sequence.append(token)
    timed.clear()
    counters = model.ops.counters
    before = counters.active, counters.predicted, counters.total
    kv_bytes = 0
    started = time.perf_counter()
    for token in random.integers(0, vocab_size, steps).tolist():
        kv_bytes += sequence.kv_bytes
        sequence.append(token)
    whole_s = time.perf_counter() - started
    state_bytes = steps * model.config.state_bytes
    timed.costs[ATTENTION].bytes += kv_bytes - state_bytes
    timed.costs[STATES].bytes += state_bytes
    timed.costs[PYTHON].seconds = whole_s - sum(cost.seconds for cost in timed.costs.values())
    costs = {
        name: OperatorCost(cost.seconds / steps, cost.bytes / steps)
        for name, cost in timed.costs.items()
    }
    total = max(1, counters.total - before[2])
    active = (counters.active - before[0]) / total
    return OperatorTimes(
        costs,
        read_gb_per_s=read_gb_per_s,
        gather_gb_per_s=_gather_gb_per_s(llm, active),
        dense_ffn_bytes=_dense_ffn_bytes(model),
        active_share=active,
        predicted_share=(counters.predicted - before[1]) / total,
    )


def state_share_of_prompt(llm: LLM, num_tokens: int = PROMPT_TOKENS) -> float:
    """Share of a prompt's time that the states take, after one prompt to warm up.

    Args:
        llm: loaded with a context of at least `num_tokens`.
    """
    model = llm.loaded.model
    timed = TimedOps(model.ops, model.weights.output.matrix)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, num_tokens).tolist()
    for _ in range(2):
        sequence = _timed_sequence(llm, timed)
        timed.clear()
        started = time.perf_counter()
        sequence.extend(tokens)
        whole_s = time.perf_counter() - started
    return timed.costs[STATES].seconds / whole_s


def _timed_sequence(llm: LLM, timed: TimedOps) -> DirectSequence:
    """A new sequence whose steps go through the timer."""
    loaded = llm.loaded
    model: Model = replace(loaded.model, ops=cast("Backend", timed))
    return DirectSequence(model, model.new_cache(kv_type=loaded.kv_type), loaded.options.batch_size)


def _dense_ffn_bytes(model: Model) -> int:
    """Bytes of FFN matrices that a sparse step reads whole: deciding rows, and down by columns."""
    total = 0
    for layer, kind in zip(model.weights.layers, model.layer_kinds, strict=True):
        ffn = layer.own_ffn
        if ffn is None:
            continue
        deciding = ffn.up if ffn.gate is None else ffn.gate
        whole = [deciding] * (kind == "exact")
        whole += [ffn.down] * (kind != "off" and not ffn.is_down_transposed)
        all_bytes = sum(model.ops.matrix_bytes(linear.matrix) for linear in whole)
        router = ffn.router
        total += all_bytes if router is None else all_bytes * router.num_used // router.num_experts
    return total


def _plain_read_gb_per_s(llm: LLM) -> float:
    """GB/s of a plain read of the weights."""
    loaded = llm.loaded
    weights = [tensor.data.reshape(-1) for tensor in loaded.file.tensors.values()]
    # The first pass faults in pages that repacking released.
    reader = PlainReader(loaded.threads)
    read_s = [reader.read_s(weights) for _ in range(2)][-1]
    return sum(array.nbytes for array in weights) / read_s / 1e9


def _gather_gb_per_s(llm: LLM, active_share: float) -> float | None:
    """GB/s of a plain gather of active neurons' rows; None if there are none to gather."""
    loaded = llm.loaded
    neurons: list[Tensor] = [
        tensor
        for name, tensor in loaded.file.tensors.items()
        if name.endswith(_NEURON_TENSORS) and tensor.shape[-1] == loaded.model.config.hidden_size
    ]
    if loaded.model.sparsity == "off" or not neurons:
        return None
    return gather_read_gb_per_s([each.rows for each in neurons], active_share, loaded.threads)


def gather_read_gb_per_s(
    matrices: Sequence[ByteArray], share: float, threads: int, *, seed: int = 0
) -> float:
    """Measure GB/s of reading random rows in ascending order, without and with prefetching.

    The rate of the fastest of several settings: without prefetching, and with rows prefetched.

    Args:
        matrices: u8[rows, row_bytes] each, read in a call of its own.
        share: share of the rows, drawn for each matrix.
    """
    random = np.random.default_rng(seed)
    chosen = [
        np.flatnonzero(random.random(len(rows)) < share).astype(np.int32) for rows in matrices
    ]
    reader = RowReader(threads)

    def seconds(ahead: int) -> float:
        # All matrices before the next distance: what was read before has left the caches.
        return sum(
            reader.read_s(rows.reshape(-1), rows.shape[1], ids, ahead)
            for rows, ids in zip(matrices, chosen, strict=True)
        )

    num_bytes = sum(len(ids) * rows.shape[1] for rows, ids in zip(matrices, chosen, strict=True))
    # Fault in the pages first.
    seconds(0)
    fastest = min(seconds(ahead) for ahead in _GATHERED_AHEAD)
    return num_bytes / fastest / 1e9 if num_bytes else 0.0
