"""Bytes that the parts of a loaded model take and read on GPU and CPU, for the solvers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from powerinfer.kvcache.kv_cache import BLOCK_SIZE
from powerinfer.models import Model, kv_bytes_per_position
from powerinfer.models.weights import LayerWeights, Norm
from powerinfer.ops.backend import Backend, Matrix, SomeFFN, SomeLinear, SomePredictor, Vector
from powerinfer.ops.gpu.formats import (
    ALIGNMENT,
    PANEL_BYTES,
    WIDEST_PIECE,
    aligned,
    chunk_neurons,
    device_bytes,
    held_bytes,
    transposed_format,
)
from powerinfer.ops.protocol import KVType
from powerinfer.placement.problem import HostReads, LayerSizes, ModelSizes

__all__ = [
    "CHUNK_BYTES",
    "CODE_BYTES",
    "CONTEXT_BYTES",
    "SPARE_NEURONS",
    "SizeAssumptions",
    "model_sizes",
]

# The driver's context where it cannot be measured: 616 MiB on an H200 with CUDA 13.
CONTEXT_BYTES = 700 << 20
# Memory that the driver takes later: code of kernels (ours, torch's, cuBLAS's), and local memory of
# those that spill registers. An allowance: 138 MiB on an H200.
CODE_BYTES = 192 << 20
# Memory pools of recorded graphs, buffers of the decode kernels, and rounding by torch's allocator
# (2 MiB for each of the arenas of weights and of the KV cache).
_POOLS_BYTES = 64 << 20
# Size of each of the two buffers that stream cold weights during prefill: a transfer of 0.6 ms on
# PCIe 5.0, in which Python queues the some 30 launches of the chunk before; small compared with the
# budget.
CHUNK_BYTES = 32 << 20
# Free slots in a layer whose neurons may move; the same number moves at once.
SPARE_NEURONS = 32
# Prefill runs in f32 with at most this many arrays of a layer alive. As wide as the FFN: its two
# products, their result, the mask, and what torch's allocator leaves between them. As wide as the
# stream: the stream, its norm, queries, keys, values and sums.
_WIDE_ARRAYS, _NARROW_ARRAYS = 5, 8
# Pieces of matrices are repacked on the device, on the stream of an uploader: there are two, and
# torch keeps the memory of each stream apart.
_UPLOAD_BYTES = 32 << 20
# An entry of the table of slots (hot neurons only) or of the table of ids (all neurons).
_TABLE_BYTES = 4
# Arrays with an element per slot: codes, scales and biases of gate and up, codes and scales of
# down, and the table. Each is followed by a gap.
_SLOT_ARRAYS = 9
_F32 = 4
# Per token and neuron: masks, and scores of routers and predictors with their comparison.
_MASK_BYTES, _SCORE_BYTES = 3, 6


@dataclass(frozen=True, slots=True)
class SizeAssumptions:
    """Inputs of the sizes besides the weights.

    Attributes:
        seq_len: context length of the decode step to predict.
        driver_bytes: memory of the driver's context and of code; 0 if not part of the budget.
        kv_tokens: positions of all sequences together; None for one full context.
    """

    kv_type: KVType
    seq_len: int
    batch_size: int
    driver_bytes: int = CONTEXT_BYTES + CODE_BYTES
    neurons_move: bool = False
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Memory:
    """Sizes of weights on the GPU, where they are padded, or in the file's formats."""

    ops: Backend
    is_device: bool

    def matrix(self, matrix: Matrix) -> int:
        if self.is_device:
            return held_bytes(self.ops.matrix_format(matrix), *self.ops.matrix_shape(matrix))
        return self.ops.matrix_bytes(matrix)

    def vectors(self, vectors: Iterable[Vector | None]) -> int:
        sizes = (_F32 * len(self.ops.vector_values(each)) for each in vectors if each is not None)
        return sum(aligned(size) if self.is_device else size for size in sizes)

    def linears(self, linears: Sequence[SomeLinear]) -> int:
        return sum(self.matrix(x.matrix) for x in linears) + self.vectors(x.bias for x in linears)

    def norms(self, norms: Iterable[Norm]) -> int:
        return self.vectors(part for norm in norms for part in (norm.weight, norm.bias))

    def predictor(self, predictor: SomePredictor | None) -> int:
        if predictor is None:
            return 0
        matrices = [] if predictor.fc1 is None else [predictor.fc1]
        matrices += [stage.matrix for stage in predictor.stages]
        vectors = [predictor.center, *(stage.bias for stage in predictor.stages)]
        return sum(map(self.matrix, matrices)) + self.vectors(vectors)


def model_sizes(model: Model, assumed: SizeAssumptions) -> ModelSizes:
    """Compute all sizes of a model on the CPU, with its predictors, at its context length."""
    config, weights = model.config, model.weights
    gpu, cpu = _Memory(model.ops, is_device=True), _Memory(model.ops, is_device=False)
    output, experts = [weights.output], config.experts
    norms = [] if weights.output_norm is None else [weights.output_norm]
    layers = tuple(
        _layer(model, number, layer, assumed) for number, layer in enumerate(weights.layers)
    )
    return ModelSizes(
        layers=layers,
        num_neurons=config.num_neurons,
        hidden_size=config.hidden_size,
        output_bytes=gpu.linears(output) + gpu.norms(norms),
        overhead_bytes=assumed.driver_bytes
        + _workspace_bytes(model, assumed)
        + _rope_bytes(model)
        + (_spare_bytes(model, layers) if assumed.neurons_move else 0),
        is_parallel=model.architecture.is_parallel,
        host_output_bytes=cpu.linears(output) + cpu.norms(norms),
        num_experts=1 if experts is None else experts.num_experts,
        num_used=1 if experts is None else experts.num_used,
    )


def _workspace_bytes(model: Model, assumed: SizeAssumptions) -> int:
    config = model.config
    tokens = min(assumed.batch_size, model.context_length)
    widest = min(config.num_neurons, WIDEST_PIECE)
    widths = _WIDE_ARRAYS * widest + _NARROW_ARRAYS * config.hidden_size
    arrays = _F32 * (tokens * widths + 8 * config.vocab_size)
    if config.num_neurons > widest or config.num_experts:
        # Arrays as wide as all neurons even when pieces are smaller: masks and predictor scores.
        has_predictor = any(layer.ffn.predictor is not None for layer in model.weights.layers)
        arrays += tokens * config.num_neurons * (_MASK_BYTES + has_predictor * _SCORE_BYTES)
    chunk = max(_chunk_bytes(model.ops, layer.ffn) for layer in model.weights.layers)
    return _POOLS_BYTES + PANEL_BYTES + 2 * (_UPLOAD_BYTES + chunk) + arrays


def _chunk_bytes(ops: Backend, ffn: SomeFFN) -> int:
    """Size of one of the two buffers that stream cold neurons."""
    biases = _F32 * sum(part is not None and part.bias is not None for part in (ffn.gate, ffn.up))
    num_neurons = ops.matrix_shape(ffn.up.matrix)[0]
    rows = sum(_device_neuron(ops, ffn)) - biases
    num_slots = chunk_neurons(rows, num_neurons, CHUNK_BYTES)
    return num_slots * (rows + biases) + _SLOT_ARRAYS * ALIGNMENT


def _rope_bytes(model: Model) -> int:
    tables = model.rope_tables
    return sum(aligned(table.cos.nbytes) + aligned(table.sin.nbytes) for table in tables)


def _kv_bytes(model: Model, assumed: SizeAssumptions) -> int:
    """Size of a layer's keys and values, in whole blocks."""
    config = model.config
    num_positions = -(-(assumed.kv_tokens or model.context_length) // BLOCK_SIZE) * BLOCK_SIZE
    num_elements = num_positions * config.num_kv_heads * config.head_dim
    return 2 * held_bytes(assumed.kv_type.value, 1, num_elements)


def _spare_bytes(model: Model, sizes: Sequence[LayerSizes]) -> int:
    pairs = zip(model.weights.layers, sizes, strict=True)
    return sum(SPARE_NEURONS * size.neuron_bytes for layer, size in pairs if _can_move(layer.ffn))


def _layer(model: Model, number: int, layer: LayerWeights, assumed: SizeAssumptions) -> LayerSizes:
    ops, config = model.ops, model.config
    gpu, cpu = _Memory(ops, is_device=True), _Memory(ops, is_device=False)
    router = layer.ffn.router
    linears = (*layer.mixer.linears, *(() if router is None else (router.linear,)))
    norms, down = layer.norms.values(), layer.ffn.down
    # The bias of down is added once, on the GPU, wherever the neurons are computed.
    vectors = (*layer.mixer.vectors, down.bias)
    per_position = kv_bytes_per_position(config, assumed.kv_type) // len(config.attention_layers)
    num_attended = config.attention[number].num_attended(assumed.seq_len)
    device, kind = _device_neuron(ops, layer.ffn), model.layer_kinds[number]
    device_idle, device_active = _reads(kind, *device)
    host_idle, host_active = _reads(kind, *_host_neuron(ops, layer.ffn))
    predictor = layer.ffn.predictor
    # The GPU has no kernel for the hidden layers of per-expert predictors: such blocks stay on the
    # CPU.
    is_handed = predictor is not None and predictor.num_experts > 1
    return LayerSizes(
        attention_bytes=gpu.linears(linears)
        + gpu.norms(norms)
        + gpu.vectors(vectors)
        + _table_bytes(ops, layer.ffn, assumed)
        + _device_shared(gpu, layer.shared_ffn),
        kv_bytes=_kv_bytes(model, assumed),
        predictor_bytes=0 if is_handed else gpu.predictor(predictor),
        neuron_bytes=sum(device) + _TABLE_BYTES,
        idle_bytes=device_idle,
        active_bytes=device_active,
        kv_read_bytes=per_position * num_attended,
        host=HostReads(
            attention_bytes=cpu.linears(linears)
            + cpu.norms(norms)
            + cpu.vectors(vectors)
            + _host_shared(cpu, layer.shared_ffn),
            predictor_bytes=cpu.predictor(predictor),
            idle_bytes=host_idle,
            active_bytes=host_active,
            down_bytes=0 if layer.ffn.is_down_transposed else ops.matrix_bytes(down.matrix),
        ),
        is_handed=is_handed,
    )


def _device_shared(gpu: _Memory, shared: SomeFFN | None) -> int:
    """Size of a shared expert, whose neurons are all placed with the attention."""
    if shared is None:
        return 0
    num_neurons = gpu.ops.matrix_shape(shared.up.matrix)[0]
    rows = num_neurons * sum(_device_neuron(gpu.ops, shared))
    tables = 2 * aligned(_TABLE_BYTES * num_neurons) + _SLOT_ARRAYS * (ALIGNMENT - 1)
    return rows + tables + gpu.vectors([shared.down.bias])


def _host_shared(cpu: _Memory, shared: SomeFFN | None) -> int:
    if shared is None:
        return 0
    return cpu.linears([x for x in (shared.gate, shared.up, shared.down) if x is not None])


def _can_move(ffn: SomeFFN) -> bool:
    """Only neurons with a predictor and a row of down each can move."""
    return ffn.predictor is not None and ffn.is_down_transposed


def _table_bytes(ops: Backend, ffn: SomeFFN, assumed: SizeAssumptions) -> int:
    """Size of the GPU tables over all neurons, hot or cold, and of the gaps between arrays."""
    table = aligned(_F32 * ops.matrix_shape(ffn.up.matrix)[0])
    num_tables = 2 if assumed.neurons_move and _can_move(ffn) else 1
    return num_tables * table + _SLOT_ARRAYS * (ALIGNMENT - 1)


def _reads(kind: str, deciding: int, rest: int) -> tuple[int, int]:
    """Return the bytes of a neuron that are always read, and those read if it fires."""
    if kind == "off":
        return deciding + rest, 0
    return (deciding, rest) if kind == "exact" else (0, deciding + rest)


# Bytes of one neuron: the row that decides whether it fires, and the other rows.


def _device_neuron(ops: Backend, ffn: SomeFFN) -> tuple[int, int]:
    """Bytes in the formats of hot neurons on the GPU, where down always has a row per neuron."""
    sizes = [_device_row(ops, part) for part in (ffn.gate, ffn.up) if part is not None]
    down = ops.matrix_format(ffn.down.matrix)
    # Down stored by columns is transposed.
    down = down if ffn.is_down_transposed else transposed_format(down)
    return sizes[0], sum(sizes[1:]) + device_bytes(down, 1, ops.matrix_shape(ffn.up.matrix)[1])


def _host_neuron(ops: Backend, ffn: SomeFFN) -> tuple[int, int]:
    """Bytes in the file's formats, without down if its rows are not neurons."""
    parts = [part for part in (ffn.gate, ffn.up) if part is not None]
    parts += [ffn.down] if ffn.is_down_transposed else []
    num_neurons = ops.matrix_shape(ffn.up.matrix)[0]
    sizes = [ops.matrix_bytes(part.matrix) // num_neurons for part in parts]
    return sizes[0], sum(sizes[1:])


def _device_row(ops: Backend, linear: SomeLinear) -> int:
    columns = ops.matrix_shape(linear.matrix)[1]
    bias = 0 if linear.bias is None else _F32
    return device_bytes(ops.matrix_format(linear.matrix), 1, columns) + bias
