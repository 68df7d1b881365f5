"""Two devices as one backend: every operation runs where its weights lie.

`offload.placing.place_model` uploads what the plan names and leaves the rest to the CPU, so the
type of a handle determines the device of an operation; activations follow it. Consecutive layers
on the GPU are recorded as one graph and replayed. Paper: PowerInfer, arXiv 2312.12456.

A token passes `step`, then for each layer attention, here or in `ops/cpu/ops.py`, and the
feed-forward block: `blocks.py` and from there `decode.py` (few tokens) or `streamed.py` (many).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import PlacementError, UnsupportedError
from powerinfer.ops.cpu.numa import pin_to_node
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.cache import DeviceBatch, DeviceKV
from powerinfer.ops.gpu.memory import Arena, naming_exhaustion
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.head_ops import NoHeadOps
from powerinfer.ops.hybrid.blocks import SplitBlocks
from powerinfer.ops.hybrid.decode import HandedFFN, SplitFFN
from powerinfer.ops.hybrid.handles import (
    CPULoading,
    HybridArray,
    HybridFFN,
    HybridKV,
    HybridLinear,
    HybridMatrix,
    HybridVector,
    OnDevice,
    cpu_ffn,
    device_linears,
    device_vector,
    fused_whole,
    host_matrix,
    host_vector,
    optional,
)
from powerinfer.ops.hybrid.migration import HybridSettings
from powerinfer.ops.hybrid.runs import layer_runs
from powerinfer.ops.hybrid.streamed import StreamedWeights
from powerinfer.ops.hybrid.upload import Placer, Uploads
from powerinfer.ops.mixer_ops import NoMixerOps
from powerinfer.ops.protocol import (
    ActiveIds,
    HeadNorms,
    KVType,
    LayerProgram,
    Linear,
    NeuronShares,
    RopeTable,
)
from powerinfer.placement.plan import PlacementPlan
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray, IntArray

__all__ = ["HybridOps", "HybridSettings"]

# A step passes its batch to operations in either form.
StepBatch: TypeAlias = Batch | DeviceBatch


class HybridOps(NoHeadOps, NoMixerOps, CPULoading):
    """`powerinfer.ops.protocol.Ops` on a CPU and a GPU; see there for shapes.

    Activations are numpy arrays or tensors of the device, whichever the operation that made them
    runs on. Not for several threads at once.

    Attributes:
        uploads: copies weights to the GPU.
        blocks: feed-forward blocks on both devices.
    """

    name = "hybrid"
    native_s = None
    """Times of two parallel devices have no meaningful sum."""
    runs_layers_apart = False
    """Layers on the GPU run as one."""

    def __init__(
        self,
        cpu: NativeOps,
        gpu: TorchGPU,
        plan: PlacementPlan,
        settings: HybridSettings | None = None,
    ) -> None:
        """Take the backend that the model was loaded on and the GPU; upload nothing yet."""
        self.cpu, self.gpu, self.plan = cpu, gpu, plan
        self.counters = cpu.counters
        self.uploads = Uploads(cpu, gpu)
        self.blocks = SplitBlocks(cpu, gpu, self.uploads, settings or HybridSettings())
        self._runs = layer_runs(plan)

    @property
    def handoff_name(self) -> str:
        """Name of the current hand-off."""
        return self.blocks.graphs.handoff.name

    def placer(self, arena: Arena) -> Placer:
        """Create a placer that copies weights into an arena."""
        return Placer(self.uploads, arena)

    def pin(self) -> bool:
        """Pin the CPU's threads to the processor next to the GPU, until `release`.

        Returns False if they are not pinned; see `ops.cpu.numa`.
        """
        if not self.gpu.is_cuda:
            return False
        properties = torch.cuda.get_device_properties(self.gpu.device)
        try:
            address = [
                getattr(properties, f"pci_{part}_id") for part in ("domain", "bus", "device")
            ]
        except AttributeError:  # older versions of torch lack it
            return False
        return pin_to_node("{:04x}:{:02x}:{:02x}.0".format(*address), self.cpu)

    def release(self) -> None:
        """Release the uploaded feed-forward blocks; no step can run any more."""
        try:
            self.blocks.release()
        finally:
            # Also if the GPU is lost: the CPU may go on alone.
            self.cpu.unpin()

    # Norms, products and attention run where their weights lie.

    def embed(self, table: HybridMatrix, token_ids: IntArray) -> FloatArray:
        """Look up rows of the embedding, which is always in host memory."""
        return self.cpu.embed(host_matrix(table), token_ids)

    def rms_norm(self, x: HybridArray, weight: HybridVector, eps: float) -> HybridArray:
        """Normalise on the device of the weight."""
        if isinstance(weight, OnDevice):
            return self.gpu.rms_norm(self.on_device(x), weight.device, eps)
        if (streamed := self._streamed(x)) is not None:
            return self.gpu.rms_norm(self.on_device(x), streamed.vector(weight), eps)
        return self.cpu.rms_norm(self.to_host(x), weight, eps)

    def layer_norm(
        self, x: HybridArray, weight: HybridVector, bias: HybridVector | None, eps: float
    ) -> HybridArray:
        """Normalise on the device of the weight."""
        if isinstance(weight, OnDevice):
            shift = optional(device_vector)(bias)
            return self.gpu.layer_norm(self.on_device(x), weight.device, shift, eps)
        on_host = optional(host_vector)(bias)
        if (streamed := self._streamed(x)) is not None:
            sent = optional(streamed.vector)(on_host)
            return self.gpu.layer_norm(self.on_device(x), streamed.vector(weight), sent, eps)
        return self.cpu.layer_norm(self.to_host(x), weight, on_host, eps)

    def linear(
        self, x: HybridArray, layers: Sequence[HybridLinear], is_prompt: BoolArray | None = None
    ) -> Sequence[HybridArray]:
        """Multiply on the device of the matrices, which is the same for all."""
        fused = fused_whole(layers)
        if fused is not None:
            (joined,) = self.gpu.linear(self.on_device(x), [fused.whole])
            return self.gpu.split_columns(joined, fused.sizes)
        uploaded = device_linears(layers)
        if uploaded:
            return self.gpu.linear(self.on_device(x), uploaded)
        on_host = [
            Linear(host_matrix(layer.matrix), optional(host_vector)(layer.bias)) for layer in layers
        ]
        if (streamed := self._streamed(x)) is not None:
            return streamed.linear(self.on_device(x), on_host)
        return self.cpu.linear(self.to_host(x), on_host, is_prompt)

    def rope_and_store(
        self,
        q: HybridArray,
        k: HybridArray,
        v: HybridArray,
        cache: HybridKV,
        batch: StepBatch,
        rope: RopeTable | None,
        head_norms: HeadNorms[HybridVector] | None = None,
    ) -> None:
        """Rotate and store on the device of the cache."""
        if isinstance(cache, DeviceKV):
            on_device = self.on_device(q), self.on_device(k), self.on_device(v)
            uploaded = None if head_norms is None else head_norms.map(device_vector)
            self.gpu.rope_and_store(*on_device, cache, batch, rope, uploaded)
            return
        kept = None if head_norms is None else head_norms.map(host_vector)
        if (streamed := self._streamed(q)) is not None:
            sent = self.on_device(q), self.on_device(k), self.on_device(v)
            streamed.rope_and_store(*sent, cache, _host_batch(batch), rope, kept)
        else:
            on_host = self.to_host(q), self.to_host(k), self.to_host(v)
            self.cpu.rope_and_store(*on_host, cache, _host_batch(batch), rope, kept)

    def new_kv_layers(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> list[HybridKV]:
        """Allocate the cache of each layer on the device of its attention."""
        sizes = num_blocks, block_size, num_kv_heads, head_dim
        self.blocks.kv_type = kv_type
        is_on_gpu = [layer.has_attention for layer in self.plan.layers[:num_layers]]
        on_gpu = iter(self.gpu.new_kv_layers(sum(is_on_gpu), *sizes, kv_type))
        on_cpu = iter(self.cpu.new_kv_layers(num_layers - sum(is_on_gpu), *sizes, kv_type))
        return [next(on_gpu) if is_gpu else next(on_cpu) for is_gpu in is_on_gpu]

    def copy_kv_blocks(self, layers: Sequence[HybridKV], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy on the device of each layer; on the GPU before the work of the next step."""
        on_gpu = [layer for layer in layers if isinstance(layer, DeviceKV)]
        on_cpu = [layer for layer in layers if not isinstance(layer, DeviceKV)]
        self.cpu.copy_kv_blocks(on_cpu, pairs)
        with self.blocks.working():
            self.gpu.copy_kv_blocks(on_gpu, pairs)

    def attention(
        self,
        q: HybridArray,
        cache: HybridKV,
        batch: StepBatch,
        scale: float,
        window: int | None = None,
        *,
        sinks: HybridVector | None = None,
        soft_cap: float | None = None,
    ) -> HybridArray:
        """Compute attention on the device of the cache."""
        if isinstance(cache, DeviceKV):
            on_device = self.on_device(q), cache, batch, scale, window
            uploaded = optional(device_vector)(sinks)
            return self.gpu.attention(*on_device, sinks=uploaded, soft_cap=soft_cap)
        kept, on_host = optional(host_vector)(sinks), (cache, _host_batch(batch), scale, window)
        if (streamed := self._streamed(q)) is not None:
            return streamed.attention(self.on_device(q), *on_host, sinks=kept, soft_cap=soft_cap)
        return self.cpu.attention(self.to_host(q), *on_host, sinks=kept, soft_cap=soft_cap)

    # The feed-forward block: on the CPU, or on both devices.

    def ffn(
        self,
        x: HybridArray,
        ffn: HybridFFN,
        predictor_input: HybridArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: HybridArray | None = None,
    ) -> HybridArray:
        """Compute a block on the devices of its neurons."""
        return self.start_ffn(x, ffn, predictor_input, is_prompt, router_input)()

    def start_ffn(
        self,
        x: HybridArray,
        ffn: HybridFFN,
        predictor_input: HybridArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: HybridArray | None = None,
    ) -> Callable[[], HybridArray]:
        """Queue the first part of the GPU, and signal the CPU."""
        inputs = predictor_input, router_input
        if isinstance(ffn.native, SplitFFN | HandedFFN):
            scored, routed = (optional(self.on_device)(each) for each in inputs)
            return self.blocks.start(self.on_device(x), ffn.native, scored, routed, is_prompt)
        if (streamed := self._streamed(x)) is not None:
            scored = self.on_device(x if predictor_input is None else predictor_input)
            return partial(streamed.ffn, self.on_device(x), cpu_ffn(ffn), scored)
        scored_here, routed_here = (optional(self.to_host)(each) for each in inputs)
        on_host = self.to_host(x), cpu_ffn(ffn), scored_here, is_prompt, routed_here
        return partial(self.cpu.ffn, *on_host)

    def route(
        self, x: FloatArray, ffn: HybridFFN, is_prompt: BoolArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Choose experts on the CPU, also for a block that was placed since it was prepared."""
        placed = ffn.native
        original = placed.cpu if isinstance(placed, SplitFFN | HandedFFN) else cpu_ffn(ffn)
        return self.cpu.route(x, original, is_prompt)

    def ffn_active(
        self,
        x: HybridArray,
        ffn: HybridFFN,
        active: ActiveIds,
        is_prompt: BoolArray | None = None,
        router_input: HybridArray | None = None,
    ) -> HybridArray:
        """Compute listed neurons on their devices."""
        if isinstance(ffn.native, SplitFFN):
            routed = optional(self.on_device)(router_input)
            on_device = self.on_device(x), ffn.native, None, routed, is_prompt
            return self.blocks.start(*on_device, active=active)()
        routed_here = optional(self.to_host)(router_input)
        return self.cpu.ffn_active(self.to_host(x), cpu_ffn(ffn), active, is_prompt, routed_here)

    def ffn_firing(
        self,
        x: HybridArray,
        ffn: HybridFFN,
        is_prompt: BoolArray | None = None,
        router_input: HybridArray | None = None,
    ) -> tuple[HybridArray, ByteArray]:
        """Compute a block on the CPU and note which neurons fire."""
        if isinstance(ffn.native, SplitFFN | HandedFFN):
            raise UnsupportedError("which neurons fire is known of a model on the CPU alone")
        routed = optional(self.to_host)(router_input)
        return self.cpu.ffn_firing(self.to_host(x), cpu_ffn(ffn), is_prompt, routed)

    # Arrays.

    def neuron_shares(self, ffn: HybridFFN) -> NeuronShares | None:
        """Return None: the GPU does not count by layer."""
        return None

    def add(self, x: HybridArray, y: HybridArray) -> None:
        """Add y to x in place, on the device of x."""
        if isinstance(x, np.ndarray):
            self.cpu.add(x, self.to_host(y))
        else:
            self.gpu.add(x, self.on_device(y))

    def take_rows(self, x: HybridArray, rows: IntArray) -> HybridArray:
        """Gather rows on the device of x."""
        if isinstance(x, np.ndarray):
            return self.cpu.take_rows(x, rows)
        return self.gpu.take_rows(x, rows)

    def to_host(self, x: HybridArray) -> FloatArray:
        """Wait for an activation and return it as a numpy array."""
        return x if isinstance(x, np.ndarray) else self.gpu.to_host(x)

    def _streamed(self, x: HybridArray) -> StreamedWeights | None:
        """Return the operations that send weights of the CPU to an activation on the device."""
        return self.blocks.streamed(len(x)) if isinstance(x, Tensor) else None

    def on_device(self, x: HybridArray) -> Tensor:
        """Return an activation as a tensor of the device."""
        return self.gpu.to_device(x) if isinstance(x, np.ndarray) else x

    # Steps.

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Open a context whose steps raise if memory for records or sent layers runs out."""
        graphs = self.blocks.graphs
        graphs.is_on_trial = True
        try:
            yield
        finally:
            graphs.is_on_trial = False

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[HybridArray]) -> FloatArray:
        """Run the layers, on the GPU from records.

        Raises:
            OutOfDeviceMemoryError: there is no room for the activations.
            DeviceError: the GPU failed, or the CPU's half in a step that was not recorded.
        """
        with naming_exhaustion(f"a step of {batch.num_tokens} tokens", 4 * x.size):
            return self.blocks.step(x, batch, program, self._runs)


def _host_batch(batch: StepBatch) -> Batch:
    """Return the batch of a step as the CPU backend takes it."""
    if isinstance(batch, Batch):
        return batch
    if batch.host is None:
        raise PlacementError("a batch of the device was used before it was filled")
    return batch.host
