"""All feed-forward blocks of a model that lie on two devices, and the steps that run them."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from powerinfer.errors import PlacementError
from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.batch import DeviceBatch
from powerinfer.ops.gpu.memory import Arena, SharedBuffers
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.recorder import Activations
from powerinfer.ops.gpu.uploads import Uploader
from powerinfer.ops.hybrid.build import exchange_buffers, make_step_graphs
from powerinfer.ops.hybrid.counters import HybridCounts
from powerinfer.ops.hybrid.decode import FewTokens, Mask, SplitFFN, listed, predicted
from powerinfer.ops.hybrid.migration import OnlineMode, OnlinePlacement
from powerinfer.ops.hybrid.prefill import ManyTokens
from powerinfer.ops.hybrid.settings import HybridSettings
from powerinfer.ops.hybrid.slots import SlotTable, chunk_neurons
from powerinfer.ops.hybrid.step_graphs import StepGraphs, StepRun
from powerinfer.ops.hybrid.upload import PlacedBlock, Placer, Uploads
from powerinfer.ops.protocol import ActiveIds, FFNCounters
from powerinfer.values import Batch, FloatArray, IntArray

__all__ = ["SplitBlocks"]


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all blocks of a placed model use."""

    exchange: NativeExchange
    graphs: StepGraphs
    counts: HybridCounts
    uploader: Uploader
    few: FewTokens
    many: ManyTokens


class SplitBlocks:
    """Makes blocks, runs them, and keeps what they share.

    Attributes:
        are_recordable: whether the CPU computes nothing of the blocks but cold neurons.
        online: what moves neurons; None before a model was placed, or where none may move.
    """

    def __init__(
        self, cpu: NativeOps, gpu: TorchGPU, uploads: Uploads, settings: HybridSettings
    ) -> None:
        """Take both devices; `prepare` and `add` make the rest."""
        self.are_recordable = True
        self.online: OnlinePlacement | None = None
        self._cpu, self._gpu, self._uploads, self._settings = cpu, gpu, uploads, settings
        self._blocks: list[SplitFFN] = []
        self._shared: _Shared | None = None
        self._chunks = torch.empty((2, 0), dtype=torch.uint8)

    def prepare(self, num_layers: int, hidden_size: int, num_neurons: int) -> None:
        """Make what the devices share, once, after `place_chunks` and before the first `add`.

        Args:
            num_layers: of the model.
            hidden_size: of its stream.
            num_neurons: of a layer.

        Raises:
            OutOfDeviceMemoryError: the device, or page-locked memory, is exhausted.
        """
        gpu, settings = self._gpu, self._settings
        buffers = SharedBuffers.allocate(
            gpu,
            max_tokens=settings.max_tokens,
            hidden_size=hidden_size,
            num_neurons=num_neurons,
            num_layers=num_layers,
        )
        arrays = exchange_buffers(buffers)
        exchange = self._cpu.exchange(arrays)
        counts = HybridCounts(self._cpu.counters, gpu, num_layers)
        graphs = make_step_graphs(
            gpu,
            exchange,
            arrays.cold,
            arrays.flags,
            handoff=settings.handoff,
            save_counts=partial(_save_counts, self._blocks, counts, exchange),
            max_tokens=settings.max_tokens,
        )
        uploader = Uploader(gpu.device)
        self._shared = _Shared(
            exchange=exchange,
            graphs=graphs,
            counts=counts,
            uploader=uploader,
            few=FewTokens(buffers, graphs.handoff, settings.online.decay),
            many=ManyTokens(
                self._cpu,
                gpu,
                self._uploads,
                uploader,
                crossover=settings.prefill_crossover,
                chunk_bytes=settings.chunk_bytes,
                memory=self._chunks,
            ),
        )

    @property
    def graphs(self) -> StepGraphs:
        """What runs steps."""
        return self._there.graphs

    @property
    def _there(self) -> "_Shared":
        if self._shared is None:
            raise PlacementError("no model has been placed with this backend; place one first")
        return self._shared

    def place(self, ffn: NativeFFN, hot: IntArray, placer: Placer) -> PlacedBlock:
        """Copy the hot neurons of a block and its predictor to the device.

        Args:
            ffn: prepared by the CPU backend.
            hot: i32[k], ascending.
            placer: does so, or counts.

        Raises:
            OutOfDeviceMemoryError: they do not fit.
        """
        num_neurons = self._cpu.matrix_shape(ffn.up.matrix)[0]
        may_move = self._may_move(ffn) and 0 < len(hot) < num_neurons
        num_spare = self._settings.online.max_moves if may_move else 0
        table = SlotTable(hot, num_neurons, len(hot) + min(num_spare, num_neurons - len(hot)))
        return placer.block(ffn, table, is_scored=may_move)

    def place_chunks(self, ffns: Sequence[NativeFFN], placer: Placer) -> None:
        """Make room for the two chunks that cold neurons are sent in while a prompt is computed.

        Args:
            ffns: blocks with cold neurons; chunks of all of them lie in the same memory.
            placer: cuts out the room, or counts it.

        Raises:
            OutOfDeviceMemoryError: it does not fit.
        """
        num_bytes = max((self._chunk_bytes(ffn) for ffn in ffns), default=0)
        self._chunks = placer.arena.array((2, num_bytes), torch.uint8)

    def _chunk_bytes(self, ffn: NativeFFN) -> int:
        arena = Arena.counting()
        placer = Placer(self._cpu, self._gpu, self._uploads, arena)
        num_neurons = self._cpu.matrix_shape(ffn.up.matrix)[0]
        neuron_bytes = placer.empty_neurons(ffn, 0).neuron_bytes
        num_slots = chunk_neurons(neuron_bytes, num_neurons, self._settings.chunk_bytes)
        placer.empty_neurons(ffn, num_slots)
        return arena.used_bytes

    def add(self, number: int, ffn: NativeFFN, placed: PlacedBlock) -> SplitFFN:
        """Let a block run on both devices.

        Args:
            number: of the layer.
            ffn: prepared by the CPU backend.
            placed: what the device holds of it.
        """
        counters = self._there.counts.of_layer(number)
        is_full = placed.slots.is_full
        block = SplitFFN(
            number=number,
            cpu=ffn,
            hot=replace(placed.hot, counters=counters),
            predictor=placed.predictor,
            slots=placed.slots,
            handoff_layer=None if is_full else self._there.exchange.add_layer(ffn),
            scores=placed.scores,
        )
        self._blocks.append(block)
        return block

    def finish(self) -> None:
        """Every block has been added: neurons may begin to move."""
        movable = [block for block in self._blocks if block.scores is not None]
        if movable:
            self.online = OnlinePlacement(
                movable,
                partial(_load, self._uploads),
                self._gpu,
                self._there.uploader,
                self._settings.online,
            )

    def release(self) -> None:
        """Let go of everything on the device."""
        if self._shared is not None:
            self._shared.graphs.forget()
        self._blocks.clear()
        self._shared = self.online = None
        self._chunks = torch.empty((2, 0), dtype=torch.uint8)

    # What `HybridOps` calls.

    def start(self, x: Tensor, block: SplitFFN, seen: Tensor | None) -> Callable[[], Tensor]:
        """Begin a block; the result ends it: f32[num_tokens, hidden_size] on the device.

        Args:
            x: f32[num_tokens, hidden_size] on the device.
            block: the block.
            seen: the same of what its predictor looks at; None for x.
        """
        if not len(x):
            return lambda: x
        x = x.contiguous()
        return self._start(x, block, predicted(block, x if seen is None else seen.contiguous()))

    def start_listed(self, x: Tensor, block: SplitFFN, active: ActiveIds) -> Callable[[], Tensor]:
        """The same over listed neurons; `active` holds those of each token."""
        if not len(x):
            return lambda: x
        return self._start(x.contiguous(), block, listed(active, block.num_neurons, self._gpu))

    def _start(self, x: Tensor, block: SplitFFN, mask: Mask) -> Callable[[], Tensor]:
        num_tokens = len(x)
        is_few = num_tokens <= self._settings.max_tokens
        asks_cpu = block.handoff_layer is not None and (
            is_few or self._there.many.asks_cpu(num_tokens)
        )
        self._there.counts.note_call(
            block,
            num_tokens,
            is_predicted=mask is not None,
            num_uncounted=0 if asks_cpu else block.num_neurons,
        )
        if is_few:
            return self._there.few.start(x, block, mask)
        return lambda: self._there.many.run(x, block, mask)

    def step(
        self,
        x: FloatArray,
        batch: Batch,
        run: StepRun,
        key: Hashable | None,
    ) -> FloatArray:
        """Run one step, recorded where `key` allows that; see `StepGraphs.run`."""
        start = perf_counter()
        is_small = batch.num_tokens <= self._settings.max_tokens
        with self._there.graphs.working(), self._awake(is_small=is_small):
            self._there.counts.begin_step()

            def counted(x: Activations, batch: Batch | DeviceBatch) -> Activations:
                self._there.counts.begin_run()
                return run(x, batch)

            logits = self._there.graphs.run(x, batch, counted, key)
            self._there.counts.end_step(batch.num_tokens, is_small=is_small)
            self._there.exchange.collect(self._cpu.counters)
            if self.online is not None and is_small:
                self.online.after_step(perf_counter() - start)
                if not self.online.is_moving:
                    self._stop_scoring()
        return logits

    # Of its own.

    @contextmanager
    def _awake(self, *, is_small: bool) -> Iterator[None]:
        """Spare the CPU's threads the waking in every layer of a decode step."""
        exchange, handoff = self._there.exchange, self._there.graphs.handoff
        # A thread that waits for memory does so itself.
        if not (is_small and self._gpu.is_cuda) or handoff.name.startswith("memory"):
            yield
            return
        exchange.hold_awake()
        try:
            yield
        finally:
            exchange.let_sleep()

    def _may_move(self, ffn: NativeFFN) -> bool:
        """Neurons that are columns of the file's matrix take too long to gather."""
        is_wanted = self._settings.online.mode is not OnlineMode.OFF
        return is_wanted and ffn.predictor is not None and ffn.is_down_transposed

    def _stop_scoring(self) -> None:
        """Nobody asks for scores any more: steps are recorded anew without them."""
        scored = [block for block in self._blocks if block.scores is not None]
        if scored:
            for block in scored:
                block.scores = None
            self._there.graphs.forget()


# Functions, not methods: what keeps them is kept by the blocks, and the two would form a cycle that
# holds the device's memory until Python looks for cycles.


def _load(uploads: Uploads, block: SplitFFN, ids: IntArray, slots: IntArray) -> None:
    uploads.neurons(block.cpu, block.hot, ids, slots)


def _save_counts(
    blocks: Sequence[SplitFFN], counts: HybridCounts, exchange: NativeExchange
) -> Callable[[], None]:
    """What undoes the counting of the steps run from now on."""
    restore_counts = counts.save()
    known = [block.scores for block in blocks if block.scores is not None]
    scores = [(now, now.clone()) for now in known]

    def restore() -> None:
        exchange.collect(FFNCounters())
        restore_counts()
        for now, before in scores:
            now.copy_(before)

    return restore
