"""The native CPU backend: `powerinfer.ops.protocol.Ops` on the C++ extension.

A decode step spends its time in the calls below, so they do as little as they can in Python. Their
operands are made in `weights.py`.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from powerinfer import _core
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.ops.cpu.exchange import WATCHDOG_S, ExchangeBuffers, NativeExchange
from powerinfer.ops.cpu.handles import (
    CurrentBatch,
    NativeFFN,
    NativeLinear,
    NativePredictor,
    RopeHandles,
    add_stats,
    new_batch,
)
from powerinfer.ops.cpu.heads import NativeHeads
from powerinfer.ops.cpu.machine import start_team
from powerinfer.ops.cpu.prefetch_settings import PrefetchSettings
from powerinfer.ops.protocol import (
    ActiveIds,
    FFNCounters,
    HeadNorms,
    KVType,
    LayerProgram,
    NeuronShares,
    RopeTable,
)
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray, IntArray

__all__ = ["MAX_RECORDED_TOKENS", "NativeOps", "weak_key"]

MAX_RECORDED_TOKENS = 32
"""Most tokens of recorded steps, all records together: a record holds all its activations, some 4
MB per token at 7B. With more tokens Python's share of a step is small."""


class NativeOps(NativeHeads):
    """`powerinfer.ops.protocol.Ops` on a team of threads; see there for shapes.

    Errors beyond the protocol's: TypeError for arrays of another dtype or not C-contiguous,
    IndexError for token ids, positions or KV blocks out of range. Instances may be used from
    several Python threads; calls of one instance run one after the other.
    """

    name = "cpu"
    handoff_name = None
    runs_layers_apart = True

    def __init__(
        self,
        threads: int,
        kernels: str | None = None,
        *,
        repack: bool = True,
        in_place: bool = True,
        joins: bool = False,
    ) -> None:
        """Start the threads.

        Args:
            threads: see `machine.start_team`, as for `kernels`; other instances may use others.
            kernels: name of a kernel table.
            repack: copy matrices in `REPACKED_FORMATS` into the faster layout; rows stay rows.
            in_place: use other matrices where the file is mapped; else copy them into huge pages.
            joins: share threads, prefetch settings and `native_s` with the other instances of this
                process that joined with the same threads and kernels.

        Raises:
            DeviceError: this machine or build has no such kernels, or the number of threads is
                out of range.
        """
        team = start_team(threads, kernels, joins=joins)
        super().__init__(team, repack=repack, in_place=in_place)
        _core.keep_freed_memory()
        self.counters = FFNCounters()
        self._current = CurrentBatch()
        self._ropes = RopeHandles()
        self._records = StepRecords()

    @property
    def threads(self) -> int:
        """Members of the team."""
        return self._team.num_threads

    @property
    def native_s(self) -> float:
        """Seconds spent in native code so far; Python takes the rest of a step."""
        return self._team.busy_s

    @property
    def kernels(self) -> str:
        """Name of the team's kernel table."""
        return self._team.kernels

    def prefetch_settings(self, kind: str) -> PrefetchSettings:
        """Return how kernels of a kind (`READ_KINDS`) read weights."""
        return PrefetchSettings(*_core.read_way(self._team, kind))

    def set_prefetch_settings(self, kind: str, settings: PrefetchSettings) -> None:
        """Change how kernels of a kind read weights, in this instance only; no result changes."""
        values = (settings.ahead, settings.chunk_bytes, settings.gather_ahead, settings.add_ahead)
        _core.set_read_way(self._team, kind, values)

    def pin(self, cpus: Collection[int]) -> bool:
        """Restrict the team to these CPUs, by the system's numbers, until `unpin`.

        The calling thread is not restricted; threads that wait for another device are if they start
        later.

        Returns:
            False if the system has no such CPU or cannot pin (macOS); the team then runs anywhere.
        """
        return self._team.pin(sorted(cpus))

    def unpin(self) -> None:
        """Undo `pin`."""
        self._team.unpin()

    def exchange(self, buffers: ExchangeBuffers, watchdog_s: float = WATCHDOG_S) -> NativeExchange:
        """Create the CPU half of FFN layers that lie on two devices; see `NativeExchange`."""
        return NativeExchange(self._team, buffers, watchdog_s)

    def predict(
        self, x: FloatArray, predictor: NativePredictor, is_prompt: BoolArray | None = None
    ) -> ActiveIds:
        """List the neurons that pass every stage."""
        return ActiveIds(*_core.predict(self._team, x, predictor.native, is_prompt))

    def embed(self, table: _core.Matrix, token_ids: IntArray) -> FloatArray:
        """Decode rows."""
        out = np.empty((len(token_ids), table.columns), np.float32)
        _core.embed(self._team, table, token_ids, out)
        return out

    def rms_norm(self, x: FloatArray, weight: _core.Vector, eps: float) -> FloatArray:
        """Root mean square normalisation (arXiv 1910.07467)."""
        out = np.empty(x.shape, np.float32)
        _core.rms_norm(self._team, x, weight, eps, out)
        return out

    def layer_norm(
        self, x: FloatArray, weight: _core.Vector, bias: _core.Vector | None, eps: float
    ) -> FloatArray:
        """Layer normalisation with population variance (arXiv 1607.06450)."""
        out = np.empty(x.shape, np.float32)
        _core.layer_norm(self._team, x, weight, bias, eps, out)
        return out

    def linear(
        self, x: FloatArray, layers: Sequence[NativeLinear], is_prompt: BoolArray | None = None
    ) -> list[FloatArray]:
        """Products of one input with several matrices, in one call."""
        matrices = [layer.matrix for layer in layers]
        num_tokens = len(x)
        outs = [np.empty((num_tokens, matrix.rows), np.float32) for matrix in matrices]
        biases = [layer.bias for layer in layers]
        _core.linear(self._team, x, matrices, biases, outs, is_prompt)
        return outs

    def rope_and_store(
        self,
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        cache: _core.KVLayer,
        batch: Batch,
        rope: RopeTable | None,
        head_norms: HeadNorms[_core.Vector] | None = None,
    ) -> None:
        """Normalise and rotate q and k in place and write k and v."""
        table = None if rope is None else self._ropes.handle(rope)
        norms = None
        if head_norms is not None:
            norms = head_norms.q, head_norms.k, head_norms.eps, head_norms.v
        _core.rope_and_store(self._team, q, k, v, cache, self._current.of(batch), table, norms)

    def new_kv_layers(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> list[_core.KVLayer]:
        """Reserve addresses; a block takes memory once it is written."""
        if kv_type is KVType.Q8_0 and head_dim % 32 != 0:
            raise ShapeError(f"a q8_0 KV cache needs heads of a multiple of 32, got {head_dim}")
        sizes = num_blocks, block_size, num_kv_heads, head_dim
        return [_core.KVLayer(*sizes, kv_type.value) for _ in range(num_layers)]

    def copy_kv_blocks(
        self, layers: Sequence[_core.KVLayer], pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Copy in place, so that records keep their addresses."""
        for layer in layers:
            for source, target in pairs:
                layer.copy_block(source, target)

    def attention(
        self,
        q: FloatArray,
        cache: _core.KVLayer,
        batch: Batch,
        scale: float,
        window: int | None = None,
        *,
        sinks: _core.Vector | None = None,
        soft_cap: float | None = None,
    ) -> FloatArray:
        """Compute softmax attention over the cache, in fixed chunks of positions."""
        out = np.empty(q.shape, np.float32)
        tokens, reach, cap = self._current.of(batch), window or 0, soft_cap or 0.0
        _core.attention(self._team, q, cache, tokens, scale, reach, out, sinks, cap)
        return out

    def route(
        self, x: FloatArray, ffn: NativeFFN, is_prompt: BoolArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return ids and weights of the chosen experts."""
        if ffn.router is None:
            raise UnsupportedError("an FFN without a router has no experts to choose")
        shape = len(x), ffn.router.num_used
        ids, weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
        _core.route(self._team, ffn.native, x, ids, weights, is_prompt)
        return ids, weights

    def ffn(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        predictor_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> FloatArray:
        """Compute a feed-forward block in one call, including its predictor."""
        out = np.empty(x.shape, np.float32)
        predictor = scored = None
        if ffn.predictor is not None:
            predictor = ffn.predictor.native
            scored = x if predictor_input is None else predictor_input
        team, block = self._team, ffn.native
        stats = _core.ffn(team, x, block, out, predictor, scored, is_prompt, router_input)
        add_stats(self.counters, stats)
        return out

    def start_ffn(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        predictor_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> Callable[[], FloatArray]:
        """Put off everything until the result is asked for."""
        return partial(self.ffn, x, ffn, predictor_input, is_prompt, router_input)

    def ffn_active(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        active: ActiveIds,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> FloatArray:
        """Compute a block over listed neurons only."""
        out = np.empty(x.shape, np.float32)
        offsets, ids = active.offsets, active.ids
        stats = _core.ffn_active(
            self._team, x, ffn.native, offsets, ids, out, is_prompt, router_input
        )
        add_stats(self.counters, stats)
        return out

    def ffn_firing(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> tuple[FloatArray, ByteArray]:
        """Compute a block and note which neurons fire, in one call; prompt rows only."""
        if len(x) and (is_prompt is None or not is_prompt.all()):
            raise UnsupportedError("which neurons fire is known of prompts, not of decode rows")
        out = np.empty(x.shape, np.float32)
        fired = np.empty((len(x), -(-ffn.up.matrix.rows // 8)), np.uint8)
        stats = _core.ffn_firing(self._team, x, ffn.native, out, fired, router_input)
        add_stats(self.counters, stats)
        return out, fired

    def weighted_ffn(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        active: ActiveIds,
        weights: FloatArray,
        is_prompt: BoolArray | None = None,
    ) -> FloatArray:
        """Compute listed neurons of experts that another device chose, without biases of down.

        The router is not used. `weights`, f32[num_tokens, num_experts], are 0 for experts that a
        token does not use; listed neurons of these are ignored.
        """
        out = np.empty(x.shape, np.float32)
        lists = active.offsets, active.ids
        add_stats(
            self.counters,
            _core.ffn_weighted(self._team, x, ffn.native, *lists, weights, out, is_prompt),
        )
        return out

    def neuron_shares(self, ffn: NativeFFN) -> NeuronShares | None:
        """Return the shares in the block's last decode step."""
        rows, batches, active, united = ffn.native.last_decode
        size = ffn.up.matrix.rows
        return NeuronShares(active / (rows * size), united / (batches * size)) if rows else None

    def add(self, x: FloatArray, y: FloatArray) -> None:
        """Add y to x in place."""
        _core.add(self._team, x, y)

    def take_rows(self, x: FloatArray, rows: IntArray) -> FloatArray:
        """Copy rows."""
        out = np.empty((len(rows), x.shape[1]), np.float32)
        _core.take_rows(self._team, x, rows, out)
        return out

    def to_host(self, x: FloatArray) -> FloatArray:
        """Return `x`; C++ cannot run a step alone if Python looks at its numbers."""
        self._team.spoil_record()
        return x

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[FloatArray]) -> FloatArray:
        """Run a step; few generated tokens in one call, once such a step has been recorded."""
        if program.key is None or batch.num_tokens > MAX_RECORDED_TOKENS:
            return _run(x, batch, program)
        record = self._records.find(program.key, batch.num_tokens)
        if record is None:
            return self._record(x, batch, program, program.key)
        if not record.calls.is_complete:
            return _run(x, batch, program)
        np.copyto(record.x, x)
        for recorded, given in zip(record.inputs, program.inputs, strict=True):
            np.copyto(recorded, given)
        add_stats(
            self.counters, record.calls.run(self._team, record.batch, self._current.of(batch))
        )
        return record.out.copy()

    def _record(
        self, x: FloatArray, batch: Batch, program: LayerProgram[FloatArray], key: Hashable
    ) -> FloatArray:
        """Run a step and record the calls that this thread makes for it."""
        calls, own = _core.StepRecord(), new_batch(batch)
        calls.begin(self._team)
        # The recorded calls, and no others, use the batch that later runs put their tokens in.
        self._current = CurrentBatch(batch, own)
        try:
            out = _run(x, batch, program)
        finally:
            self._current = CurrentBatch()
            calls.end(self._team)
        self._records.keep(key, batch.num_tokens, StepRecord(calls, x, program.inputs, own, out))
        return out.copy()


def _run(x: FloatArray, batch: Batch, program: LayerProgram[FloatArray]) -> FloatArray:
    return program.end(program.layers(x, batch, 0, program.num_layers))


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A decode step that was run once from Python, to be run again as one native call.

    Between two native calls the threads fall asleep and memory is idle, while weights push Python's
    own data out of the caches: with nine calls a layer that is 6 % of a step of 7B in Q4_K.

    Attributes:
        calls: its calls; not complete if Python looked at numbers, so that it must not run again.
        x: f32[num_tokens, hidden_size], the embedded tokens; every run changes them.
        inputs: the program's further inputs; every run replaces their numbers.
        batch: the tokens of the current run.
        out: f32[num_tokens, vocab_size]; every run overwrites it.
    """

    calls: _core.StepRecord
    x: FloatArray
    inputs: tuple[FloatArray, ...]
    batch: _core.Batch
    out: FloatArray


class StepRecords:
    """Records by the key of their program (`LayerProgram.key`) and their number of tokens."""

    def __init__(self) -> None:
        # By `weak_key` and number of tokens.
        self._records: OrderedDict[tuple[Hashable, int], StepRecord] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def find(self, key: Hashable, num_tokens: int) -> StepRecord | None:
        """Return the record of such steps, if there is one."""
        size = (weak_key(key), num_tokens)
        record = self._records.get(size)
        if record is not None:
            self._records.move_to_end(size)
        return record

    def keep(self, key: Hashable, num_tokens: int, record: StepRecord) -> None:
        """Keep a record while its key lives; the least recently used ones make room for it."""
        reference = weak_key(key, self._forget)
        self._records[reference, num_tokens] = record
        while sum(count for _, count in self._records) > MAX_RECORDED_TOKENS:
            self._records.popitem(last=False)

    def _forget(self, reference: Hashable) -> None:
        # Iterates over a copy: freeing a record may end the life of a key, which calls this again.
        for size in [size for size in list(self._records) if size[0] is reference]:
            self._records.pop(size, None)


def weak_key(
    key: Hashable, forget: Callable[[weakref.ref[Hashable]], None] | None = None
) -> Hashable:
    """Return a weak reference to the key, or the key if it allows none."""
    try:
        return weakref.ref(key, forget)
    except TypeError:
        return key
