"""For the solvers: how many bytes the parts of a loaded model take and read on GPU and CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.kvcache.kv_cache import BLOCK_SIZE
from powerinfer.models import Model, kv_bytes_per_position
from powerinfer.models.weights import LayerWeights, Norm
from powerinfer.ops.gpu.formats import (
    ALIGNMENT,
    WIDEST_PIECE,
    aligned,
    chunk_neurons,
    device_bytes,
    held_bytes,
    transposed_format,
)
from powerinfer.ops.protocol import KVType
from powerinfer.ops.some_backend import Matrix, SomeFFN, SomeLinear, SomeOps, SomePredictor, Vector
from powerinfer.placement.sizes import HostReads, LayerSizes, ModelSizes

__all__ = ["CHUNK_BYTES", "CONTEXT_BYTES", "SPARE_NEURONS", "SizeAssumptions", "model_sizes"]

# What a process pays for using a GPU at all: the driver's context and the code of torch's and
# Triton's kernels. Between 400 and 600 MiB with CUDA 12 and 13; the driver does not report it.
CONTEXT_BYTES = 500 << 20
# Memory pools of recorded graphs, buffers of the decode kernels, and what torch's allocator rounds
# up: 2 MiB for each of the arenas of weights and of the KV cache.
_POOLS_BYTES = 64 << 20
# Of each of the two buffers that cold weights are sent into while a prompt is computed: large
# enough for the bus's full speed, small beside the budget.
CHUNK_BYTES = 16 << 20
# Slots that are kept free in a layer whose neurons may move; as many move at once.
SPARE_NEURONS = 32
# A prompt is computed in f32 with at most this many arrays of a layer alive: as wide as the FFN its
# two products, what becomes of them, the mask and what torch's allocator leaves between them; and
# the stream, its norm, queries, keys, values and sums.
_WIDE_ARRAYS, _NARROW_ARRAYS = 5, 8
# Matrices are decoded for products with many tokens by pieces of this size.
_DECODED_BYTES = 64 << 20
# Pieces of matrices are taken apart on the device, on a stream with memory of its own.
_UPLOAD_BYTES = 32 << 20
# Of a hot neuron, its id in the table of slots; of any neuron, its slot in the table of ids.
_TABLE_BYTES = 4
# Arrays with an element per slot: of gate and up codes, scales and biases, of down codes and
# scales, and the table. A gap follows each.
_SLOT_ARRAYS = 9
_F32 = 4
# Of one token and neuron: of routers and predictors, and the comparison that makes one.
_MASK_BYTES, _SCORE_BYTES = 3, 6


@dataclass(frozen=True, slots=True)
class SizeAssumptions:
    """What sizes depend on besides the weights.

    Attributes:
        kv_type: element type of the KV cache.
        seq_len: positions a decode step sees, for the prediction.
        batch_size: most tokens of a prompt computed at once.
        context_bytes: what the driver takes; 0 where it is not part of the budget.
        neurons_move: they may, while a text is written.
        kv_tokens: positions of all sequences together; None: those of one context.
    """

    kv_type: KVType
    seq_len: int
    batch_size: int
    context_bytes: int = CONTEXT_BYTES
    neurons_move: bool = False
    kv_tokens: int | None = None


def model_sizes(model: Model, assumed: SizeAssumptions) -> ModelSizes:
    """Add everything up, at the model's context length.

    Args:
        model: on the CPU, its predictors attached.
        assumed: what else counts.
    """
    ops, config, weights = model.ops, model.config, model.weights
    output, experts = [weights.output], config.experts
    norms = [] if weights.output_norm is None else [weights.output_norm]
    layers = tuple(
        _layer(model, number, layer, assumed) for number, layer in enumerate(weights.layers)
    )
    return ModelSizes(
        layers=layers,
        num_neurons=config.num_neurons,
        hidden_size=config.hidden_size,
        output_bytes=_device_linears(ops, output) + _device_norms(ops, norms),
        overhead_bytes=assumed.context_bytes
        + _workspace_bytes(model, assumed)
        + _rope_bytes(model)
        + (_spare_bytes(model, layers) if assumed.neurons_move else 0),
        is_parallel=model.architecture.is_parallel,
        host_output_bytes=_host_linears(ops, output) + _host_norms(ops, norms),
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
        # What is as wide as all neurons whatever the pieces: masks, and scores of a predictor.
        has_predictor = any(layer.ffn.predictor is not None for layer in model.weights.layers)
        arrays += tokens * config.num_neurons * (_MASK_BYTES + has_predictor * _SCORE_BYTES)
    chunk = max(_chunk_bytes(model.ops, layer.ffn) for layer in model.weights.layers)
    return _POOLS_BYTES + _DECODED_BYTES + _UPLOAD_BYTES + 2 * chunk + arrays


def _chunk_bytes(ops: SomeOps, ffn: SomeFFN) -> int:
    """Of one of the two buffers that cold neurons are sent into."""
    neuron = _device_neuron(ops, ffn)
    biases = _F32 * sum(part is not None and part.bias is not None for part in (ffn.gate, ffn.up))
    num_neurons = ops.matrix_shape(ffn.up.matrix)[0]
    rows = neuron.deciding + neuron.rest - biases
    num_slots = chunk_neurons(rows, num_neurons, CHUNK_BYTES)
    return num_slots * (rows + biases) + _SLOT_ARRAYS * ALIGNMENT


def _rope_bytes(model: Model) -> int:
    """Of the angles of rotary attention."""
    tables = model.rope_tables
    return sum(aligned(table.cos.nbytes) + aligned(table.sin.nbytes) for table in tables)


def _kv_bytes(model: Model, assumed: SizeAssumptions) -> int:
    """Of the keys and values of a layer, in whole blocks."""
    config = model.config
    num_positions = -(-(assumed.kv_tokens or model.context_length) // BLOCK_SIZE) * BLOCK_SIZE
    num_elements = num_positions * config.num_kv_heads * config.head_dim
    return 2 * held_bytes(assumed.kv_type.value, 1, num_elements)


def _spare_bytes(model: Model, sizes: Sequence[LayerSizes]) -> int:
    """Of slots kept free."""
    pairs = zip(model.weights.layers, sizes, strict=True)
    return sum(SPARE_NEURONS * size.neuron_bytes for layer, size in pairs if _can_move(layer.ffn))


def _layer(model: Model, number: int, layer: LayerWeights, assumed: SizeAssumptions) -> LayerSizes:
    ops, config = model.ops, model.config
    router = layer.ffn.router
    linears = (*layer.qkv, layer.attn_output, *(() if router is None else (router.linear,)))
    norms = list(layer.norms.values())
    # The bias of down is added on the GPU, once, whoever computes the neurons.
    down = layer.ffn.down
    per_position = kv_bytes_per_position(config, assumed.kv_type) // config.num_layers
    num_attended = config.attention[number].num_attended(assumed.seq_len)
    device, host = _device_neuron(ops, layer.ffn), _host_neuron(ops, layer.ffn)
    device_reads = _reads(model.layer_kinds[number], device)
    host_reads = _reads(model.layer_kinds[number], host)
    predictor = layer.ffn.predictor
    # The GPU has no kernel for hidden layers of single experts: such blocks are the CPU's.
    is_handed = predictor is not None and predictor.num_experts > 1
    on_device = None if is_handed else predictor
    return LayerSizes(
        attention_bytes=_device_linears(ops, linears)
        + _device_norms(ops, norms)
        + sum(_device_vector(ops, vector) for vector in (*layer.attention_vectors, down.bias))
        + _table_bytes(ops, layer.ffn, assumed)
        + _device_shared(ops, layer.shared_ffn),
        kv_bytes=_kv_bytes(model, assumed),
        predictor_bytes=0 if on_device is None else _device_predictor(ops, on_device),
        neuron_bytes=device.deciding + device.rest + _TABLE_BYTES,
        idle_bytes=device_reads[0],
        active_bytes=device_reads[1],
        kv_read_bytes=per_position * num_attended,
        host=HostReads(
            attention_bytes=_host_linears(ops, linears)
            + _host_norms(ops, norms)
            + sum(_bias_bytes(ops, vector) for vector in (*layer.attention_vectors, down.bias))
            + _host_shared(ops, layer.shared_ffn),
            predictor_bytes=0 if predictor is None else _host_predictor(ops, predictor),
            idle_bytes=host_reads[0],
            active_bytes=host_reads[1],
            down_bytes=0 if layer.ffn.is_down_transposed else ops.matrix_bytes(down.matrix),
        ),
        is_handed=is_handed,
    )


def _device_shared(ops: SomeOps, shared: SomeFFN | None) -> int:
    """Of an expert that runs for every token, whose neurons all go where attention does."""
    if shared is None:
        return 0
    neuron, num_neurons = _device_neuron(ops, shared), ops.matrix_shape(shared.up.matrix)[0]
    rows = num_neurons * (neuron.deciding + neuron.rest)
    tables = 2 * aligned(_TABLE_BYTES * num_neurons) + _SLOT_ARRAYS * (ALIGNMENT - 1)
    return rows + tables + _device_vector(ops, shared.down.bias)


def _host_shared(ops: SomeOps, shared: SomeFFN | None) -> int:
    if shared is None:
        return 0
    return _host_linears(ops, [x for x in (shared.gate, shared.up, shared.down) if x is not None])


def _can_move(ffn: SomeFFN) -> bool:
    """Neurons of layers with a predictor and a row of down each can move."""
    return ffn.predictor is not None and ffn.is_down_transposed


def _table_bytes(ops: SomeOps, ffn: SomeFFN, assumed: SizeAssumptions) -> int:
    """What the GPU holds of all neurons, wherever they lie, and the gaps between arrays."""
    table = aligned(_F32 * ops.matrix_shape(ffn.up.matrix)[0])
    num_tables = 2 if assumed.neurons_move and _can_move(ffn) else 1
    return num_tables * table + _SLOT_ARRAYS * (ALIGNMENT - 1)


@dataclass(frozen=True, slots=True)
class _Neuron:
    """Bytes of one neuron: the row that decides whether it fires, and the others."""

    deciding: int
    rest: int


def _reads(kind: str, neuron: _Neuron) -> tuple[int, int]:
    """Idle and active bytes, see `placement.sizes.LayerSizes`."""
    if kind == "off":
        return neuron.deciding + neuron.rest, 0
    if kind == "exact":
        return neuron.deciding, neuron.rest
    return 0, neuron.deciding + neuron.rest


def _device_neuron(ops: SomeOps, ffn: SomeFFN) -> _Neuron:
    """In the formats that hot neurons have on the GPU, where down is a row per neuron always."""
    rows = [part for part in (ffn.gate, ffn.up) if part is not None]
    sizes = [_device_row(ops, part) for part in rows]
    hidden_size = ops.matrix_shape(ffn.up.matrix)[1]
    down = _down_format(ops, ffn)
    return _Neuron(sizes[0], sum(sizes[1:]) + device_bytes(down, 1, hidden_size))


def _down_format(ops: SomeOps, ffn: SomeFFN) -> str:
    """Format of down on the GPU, where one that is stored by columns is transposed."""
    name = ops.matrix_format(ffn.down.matrix)
    return name if ffn.is_down_transposed else transposed_format(name)


def _host_neuron(ops: SomeOps, ffn: SomeFFN) -> _Neuron:
    """In the file's formats; without down if its rows are not neurons."""
    parts = [part for part in (ffn.gate, ffn.up) if part is not None]
    parts += [ffn.down] if ffn.is_down_transposed else []
    num_neurons = ops.matrix_shape(ffn.up.matrix)[0]
    sizes = [ops.matrix_bytes(part.matrix) // num_neurons for part in parts]
    return _Neuron(sizes[0], sum(sizes[1:]))


def _device_row(ops: SomeOps, linear: SomeLinear) -> int:
    columns = ops.matrix_shape(linear.matrix)[1]
    bias = 0 if linear.bias is None else _F32
    return device_bytes(ops.matrix_format(linear.matrix), 1, columns) + bias


def _predictor_parts(predictor: SomePredictor) -> tuple[list[Matrix], list[Vector | None]]:
    matrices = [] if predictor.fc1 is None else [predictor.fc1]
    matrices += [stage.matrix for stage in predictor.stages]
    return matrices, [predictor.center, *(stage.bias for stage in predictor.stages)]


def _device_predictor(ops: SomeOps, predictor: SomePredictor) -> int:
    matrices, vectors = _predictor_parts(predictor)
    held = sum(_device_matrix(ops, matrix) for matrix in matrices)
    return held + sum(_device_vector(ops, vector) for vector in vectors)


def _host_predictor(ops: SomeOps, predictor: SomePredictor) -> int:
    matrices, vectors = _predictor_parts(predictor)
    held = sum(ops.matrix_bytes(matrix) for matrix in matrices)
    return held + sum(_bias_bytes(ops, vector) for vector in vectors)


def _device_linears(ops: SomeOps, linears: Sequence[SomeLinear]) -> int:
    return sum(_device_matrix(ops, x.matrix) + _device_vector(ops, x.bias) for x in linears)


def _host_linears(ops: SomeOps, linears: Sequence[SomeLinear]) -> int:
    return sum(ops.matrix_bytes(x.matrix) + _bias_bytes(ops, x.bias) for x in linears)


def _device_matrix(ops: SomeOps, matrix: Matrix) -> int:
    return held_bytes(ops.matrix_format(matrix), *ops.matrix_shape(matrix))


def _device_norms(ops: SomeOps, norms: Sequence[Norm]) -> int:
    return sum(_device_vector(ops, part) for norm in norms for part in (norm.weight, norm.bias))


def _host_norms(ops: SomeOps, norms: Sequence[Norm]) -> int:
    return sum(_bias_bytes(ops, part) for norm in norms for part in (norm.weight, norm.bias))


def _device_vector(ops: SomeOps, vector: Vector | None) -> int:
    return aligned(_bias_bytes(ops, vector))


def _bias_bytes(ops: SomeOps, vector: Vector | None) -> int:
    return 0 if vector is None else _F32 * len(ops.vector_values(vector))
