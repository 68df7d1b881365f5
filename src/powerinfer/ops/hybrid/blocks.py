"""All feed-forward blocks of a model that lie on two devices, and the steps that run them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import cast

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import PlacementError
from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.cache import DeviceBatch
from powerinfer.ops.gpu.formats import chunk_neurons
from powerinfer.ops.gpu.memory import Arena, naming_kernel_failure
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.recorder import Activations
from powerinfer.ops.gpu.selection import route
from powerinfer.ops.gpu.uploads import ChunkStream, Uploader
from powerinfer.ops.hybrid.build import SharedBuffers, make_step_graphs
from powerinfer.ops.hybrid.counters import HybridCounters
from powerinfer.ops.hybrid.decode import (
    DecodeFFN,
    HandedFFN,
    SplitFFN,
    listed,
    needs_matrices,
    predicted,
)
from powerinfer.ops.hybrid.handles import SlotTable
from powerinfer.ops.hybrid.handoff import Handoff
from powerinfer.ops.hybrid.migration import HybridSettings, OnlineMode, OnlinePlacement
from powerinfer.ops.hybrid.runs import LayerRun, token_groups
from powerinfer.ops.hybrid.step_graphs import Counting, StepGraphs
from powerinfer.ops.hybrid.streamed import StreamedWeights
from powerinfer.ops.hybrid.upload import Placer, Uploads
from powerinfer.ops.protocol import ActiveIds, ArrayT, KVType, LayerProgram
from powerinfer.values import Batch, BoolArray, FloatArray, IntArray

__all__ = ["SplitBlocks"]


@dataclass(frozen=True, slots=True)
class _Shared:
    """Parts that all blocks of a placed model share."""

    exchange: NativeExchange
    graphs: StepGraphs
    counters: HybridCounters
    uploaders: tuple[Uploader, Uploader]
    decode: DecodeFFN
    streamed: StreamedWeights


class SplitBlocks:
    """Creates and runs blocks, and owns what they share.

    Methods that allocate raise OutOfDeviceMemoryError if there is no room.

    Attributes:
        are_recordable: no predictor is written in Python, which a step would have to call.
        online: moves neurons; None before a model was placed, or if none may move.
        are_streamable: the GPU may compute prompts of the layers on the CPU.
        kv_type: type of the last cache.
    """

    def __init__(
        self, cpu: NativeOps, gpu: TorchGPU, uploads: Uploads, settings: HybridSettings
    ) -> None:
        self.are_recordable = True
        self.online: OnlinePlacement | None = None
        self.are_streamable = False
        self.kv_type = KVType.F16
        self._cpu, self._gpu, self._uploads, self._settings = cpu, gpu, uploads, settings
        self._blocks: list[SplitFFN] = []
        self._handoff_layers: dict[int, int] = {}
        self._first_shared = 0
        self._shared: _Shared | None = None
        self._chunks = torch.empty((2, 0), dtype=torch.uint8)

    def prepare(
        self, num_layers: int, hidden_size: int, num_neurons: int, num_experts: int = 0
    ) -> None:
        """Create what the devices share, once, after `place_chunks` and before the first `add`.

        Numbers of neurons and experts are those of a layer; dense blocks have 0 experts.
        """
        gpu, settings = self._gpu, self._settings
        buffers = SharedBuffers.allocate(
            gpu,
            max_tokens=settings.max_tokens,
            hidden_size=hidden_size,
            num_neurons=num_neurons,
            num_layers=num_layers,
            num_experts=num_experts,
        )
        exchange = self._cpu.exchange(buffers.exchange)
        self._first_shared = num_layers
        num_counted = (1 + bool(num_experts)) * num_layers
        counters = HybridCounters(self._cpu.counters, exchange, gpu, num_counted, self._blocks)
        graphs = make_step_graphs(
            gpu,
            exchange,
            handoff=settings.handoff,
            counting=Counting(counters.save, counters.fetch),
            max_tokens=settings.max_tokens,
        )
        stream = ChunkStream(gpu.device, self._chunks)
        self._shared = _Shared(
            exchange=exchange,
            graphs=graphs,
            counters=counters,
            uploaders=stream.uploaders,
            decode=DecodeFFN(buffers, graphs.handoff, settings.online.decay),
            streamed=StreamedWeights(self._uploads, stream, graphs, settings),
        )

    @property
    def graphs(self) -> StepGraphs:
        """Executes the runs of layers of steps."""
        return self._placed.graphs

    def streamed(self, num_tokens: int) -> StreamedWeights | None:
        """Return the operations of the GPU for layers of the CPU; None for few tokens."""
        is_large = self.are_streamable and num_tokens > self._settings.max_tokens
        if self._shared is None or not is_large:
            return None
        return self._shared.streamed if self._shared.streamed.takes_layers(num_tokens) else None

    def working(self) -> AbstractContextManager[None]:
        """Open the context for work that steps must follow."""
        return nullcontext() if self._shared is None else self._shared.graphs.working()

    @property
    def _placed(self) -> "_Shared":
        if self._shared is None:
            raise PlacementError("no model has been placed with this backend; place one first")
        return self._shared

    def place(self, ffn: NativeFFN, hot: IntArray, placer: Placer) -> SplitFFN:
        """Copy the hot neurons of a block, ascending i32[k], and its predictor to the device."""
        num_neurons, online = self._cpu.matrix_shape(ffn.up.matrix)[0], self._settings.online
        # Columns of a down that is not transposed take too long to gather.
        is_movable = ffn.predictor is not None and ffn.is_down_transposed
        is_split = 0 < len(hot) < num_neurons
        may_move = online.mode is not OnlineMode.OFF and is_movable and is_split
        num_spare = min(online.max_moves, num_neurons - len(hot)) if may_move else 0
        table = SlotTable(hot, num_neurons, len(hot) + num_spare)
        return placer.block(ffn, table, is_scored=may_move)

    def place_chunks(self, ffns: Sequence[NativeFFN], placer: Placer) -> None:
        """Allocate two buffers for chunks of cold neurons of prompts, which all blocks share."""
        num_bytes = 0
        for ffn in ffns:
            counting = Placer(self._uploads, Arena.counting())
            num_neurons = self._cpu.matrix_shape(ffn.up.matrix)[0]
            neuron_bytes = counting.empty_neurons(ffn, 0).neuron_bytes
            num_slots = chunk_neurons(neuron_bytes, num_neurons, self._settings.chunk_bytes)
            counting.empty_neurons(ffn, num_slots)
            num_bytes = max(num_bytes, counting.arena.used_bytes)
        self._chunks = placer.arena.array((2, num_bytes), torch.uint8)

    def add(self, number: int, block: SplitFFN | HandedFFN) -> SplitFFN | HandedFFN:
        """Let the placed block of a layer run."""
        is_handed = isinstance(block, HandedFFN)
        if isinstance(block, HandedFFN) or not block.slots.is_full:
            layer = self._placed.exchange.add_layer(block.cpu, is_predicting=is_handed)
            block.handoff_layer = self._handoff_layers[number] = layer
        if isinstance(block, SplitFFN):
            block.number, block.hot = number, self._placed.counters.counted(number, block.hot)
            self._blocks.append(block)
        return block

    def add_shared(self, number: int, block: SplitFFN) -> SplitFFN | HandedFFN:
        """Let a layer's shared expert, placed whole, run; see `add`."""
        # It has its own counters, after those of all layers.
        return self.add(self._first_shared + number, block)

    def finish(self) -> None:
        """Let neurons move, now that every block has been added."""
        scored = [block for block in self._blocks if block.scores is not None]
        if scored:
            uploader, settings = self._placed.uploaders[0], self._settings.online
            self.online = OnlinePlacement(scored, self._uploads, self._gpu, uploader, settings)

    def release(self) -> None:
        """Release everything on the device."""
        if self._shared is not None:
            for uploader in self._shared.uploaders:
                uploader.close()
            self._shared.graphs.forget()
        self._blocks.clear()
        self._shared = self.online = None
        self._chunks = torch.empty((2, 0), dtype=torch.uint8)

    # Called by `HybridOps`.

    def start(
        self,
        x: Tensor,
        block: SplitFFN | HandedFFN,
        predictor_input: Tensor | None,
        router_input: Tensor | None,
        is_prompt: BoolArray | None,
        *,
        active: ActiveIds | None = None,
    ) -> Callable[[], Tensor]:
        """Start a block; calling the result finishes it and returns the output on the device.

        Inputs are f32[num_tokens, hidden_size] on the device; one that is None is `x`.

        Args:
            is_prompt: bool[num_tokens], for the CPU's part of steps with more tokens than are
                handed over; rows that are handed over are decode rows.
            active: neurons of a `SplitFFN` to be computed, instead of those its predictor selects.
        """
        if not len(x):
            return lambda: x
        x = x.contiguous()
        scored = x if predictor_input is None else predictor_input.contiguous()
        routed = x if router_input is None else router_input.contiguous()
        streamed = self.streamed(len(x))
        if active is None and streamed is not None and needs_matrices(block):
            y = streamed.handed(x, block.cpu, scored)
            if y is not None:
                return lambda: y
        if isinstance(block, SplitFFN):
            return self._start_split(x, block, scored, routed, is_prompt, active)
        if len(x) <= self._settings.max_tokens:
            return self._placed.decode.start_handed(x, block, scored, routed)
        # Fetched now, so that the device can go on with work queued in between.
        on_host = self._gpu.to_host(x), block.cpu, self._gpu.to_host(scored)
        seen = None if block.cpu.router is None else self._gpu.to_host(routed)
        finish = partial(self._cpu.ffn, *on_host, is_prompt, seen)
        return lambda: self._gpu.to_device(finish())

    def _start_split(
        self,
        x: Tensor,
        block: SplitFFN,
        scored: Tensor,
        routed: Tensor,
        is_prompt: BoolArray | None,
        active: ActiveIds | None,
    ) -> Callable[[], Tensor]:
        placed, num_tokens = self._placed, len(x)
        routing = None if block.router is None else route(routed, block.router)
        if active is None:
            mask = predicted(block, scored, routing)
        else:
            mask = listed(active, block.num_neurons, self._gpu, routing)
        is_small = num_tokens <= self._settings.max_tokens
        may_ask = is_small or not placed.streamed.takes_neurons(num_tokens)
        asks_cpu = may_ask and block.handoff_layer is not None
        num_here = 0 if asks_cpu else block.num_neurons
        is_chosen = mask is not None
        placed.counters.note_call(block, num_tokens, is_chosen=is_chosen, num_uncounted=num_here)
        if is_small:
            return placed.decode.start(x, block, mask, routing)
        return lambda: placed.streamed.split_ffn(x, block, mask, routing, is_prompt)

    def step(
        self,
        x: FloatArray,
        batch: Batch,
        program: LayerProgram[Activations],
        runs: Sequence[LayerRun],
    ) -> FloatArray:
        """Execute a step run by run; runs on the GPU are recorded if the program allows it.

        The next tokens of several texts are computed in groups that can be recorded; layers on the
        CPU take all of them at once.
        """
        start = perf_counter()
        placed, settings = self._placed, self._settings
        groups = [(slice(None), batch)]
        may_record = self.are_recordable and not placed.graphs.choice.is_exhausted
        if program.key is not None and may_record and batch.num_tokens <= settings.max_texts:
            groups = token_groups(batch, settings.max_tokens)
        most = groups[0][1].num_tokens
        with placed.graphs.working(), self._awake(most):
            for run in runs:
                if not len(x):
                    # Nothing needs the rest.
                    x = self._on_host(program.end(x))
                    break
                if run.is_on_device:
                    parts = [self._run(run, x[rows], part, program) for rows, part in groups]
                    x = parts[0] if len(parts) == 1 else np.concatenate(parts)
                else:
                    x = self._run_on_cpu(run, x, batch, program)
            placed.counters.end_step()
            placed.exchange.collect(self._cpu.counters)
            step_s, is_small = perf_counter() - start, most <= settings.max_tokens
            if self.online is not None and is_small and self.online.after_step(step_s):
                placed.graphs.forget()
        return x

    def _run_on_cpu(
        self, run: LayerRun, x: FloatArray, batch: Batch, program: LayerProgram[Activations]
    ) -> FloatArray:
        """Execute a run whose weights are on the CPU."""
        streamed = self.streamed(batch.num_tokens)
        if streamed is not None and run.first < run.last:
            with streamed.trying(self.kv_type):
                x = self._run(replace(run, has_end=False), x, batch, program)
                run = replace(run, first=run.last)
        return self._on_host(_executed(run, program, x, batch))

    def _run(
        self, run: LayerRun, x: FloatArray, batch: Batch, program: LayerProgram[Activations]
    ) -> FloatArray:
        """Execute a run on the GPU for the tokens of a batch."""
        placed, numbers = self._placed, range(run.first, run.last)
        layers = [layer for number, layer in self._handoff_layers.items() if number in numbers]
        is_small = batch.num_tokens <= self._settings.max_tokens
        key = program.key if self.are_recordable and is_small else None
        # Not by the rows of x: after layers on the CPU they may be the selected ones only. Steps
        # that are never recorded may make other calls.
        notes = run.number, batch.num_tokens, key is None

        def queue(x: Activations, batch: Batch | DeviceBatch, handoff: Handoff) -> Activations:
            placed.counters.begin_run(notes)
            placed.decode.handoff = handoff
            stream = self._gpu.to_device(x) if isinstance(x, np.ndarray) else x
            with naming_kernel_failure():
                # Operations take either batch; models know one.
                return _executed(run, program, stream, cast("Batch", batch))

        result = placed.graphs.run(x, batch, queue, key, number=run.number, layers=layers)
        placed.counters.end_run(notes, may_be_replayed=key is not None)
        return result

    @contextmanager
    def _awake(self, num_tokens: int) -> Iterator[None]:
        """Keep the CPU's threads awake during a step in which they have work at short intervals."""
        placed = self._placed
        if num_tokens <= self._settings.max_tokens:
            # A thread that waits for memory stays awake itself.
            is_wanted = not placed.graphs.handoff.name.startswith("memory")
        else:
            # They gather the cold weights that the prompt sends, matrix by matrix.
            is_wanted = bool(self._handoff_layers) and placed.streamed.takes_neurons(num_tokens)
            is_wanted = is_wanted or self.streamed(num_tokens) is not None
        if not (is_wanted and self._gpu.is_cuda):
            yield
            return
        placed.exchange.hold_awake()
        try:
            yield
        finally:
            placed.exchange.let_sleep()

    def _on_host(self, x: Activations) -> FloatArray:
        return x if isinstance(x, np.ndarray) else self._gpu.to_host(x)


def _executed(run: LayerRun, program: LayerProgram[ArrayT], x: ArrayT, batch: Batch) -> ArrayT:
    """Execute a run of a program."""
    if run.first < run.last:
        x = program.layers(x, batch, run.first, run.last)
    return program.end(x) if run.has_end else x
