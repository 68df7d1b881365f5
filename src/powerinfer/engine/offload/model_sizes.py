"""For the solvers: how many bytes the parts of a loaded model take and read on GPU and CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.models import Model, kv_bytes_per_position
from powerinfer.models.kv_cache import BLOCK_SIZE
from powerinfer.models.weights import LayerWeights, Norm
from powerinfer.ops.gpu.formats import device_bytes, transposed_format
from powerinfer.ops.protocol import KVType
from powerinfer.ops.some_backend import Matrix, SomeFFN, SomeLinear, SomeOps, SomePredictor, Vector
from powerinfer.placement.sizes import HostReads, LayerSizes, ModelSizes

__all__ = ["CHUNK_BYTES", "CONTEXT_BYTES", "SPARE_NEURONS", "SizeAssumptions", "model_sizes"]

# What a process pays for using a GPU at all: the driver's context and the code of torch's and
# Triton's kernels. Between 400 and 600 MiB with CUDA 12 and 13; the driver does not report it.
CONTEXT_BYTES = 500 << 20
# Memory pools of recorded graphs, what torch's allocator rounds up, buffers of the decode kernels.
_POOLS_BYTES = 64 << 20
# Of each of the two buffers that cold weights are sent into while a prompt is computed: large
# enough for the bus's full speed, small beside the budget.
CHUNK_BYTES = 16 << 20
# Slots that are kept free in a layer whose neurons may move; as many move at once.
SPARE_NEURONS = 32
# A prompt is computed in f32 with at most this many arrays of a layer alive: two as wide as the
# FFN, and the stream, its norm, queries, keys, values and sums.
_WIDE_ARRAYS, _NARROW_ARRAYS = 2, 8
# Matrices are decoded for products with many tokens by pieces of this size.
_DECODED_BYTES = 64 << 20
# Of one neuron: its id in the table of slots, its slot in the table of ids, its place in the list.
_TABLE_BYTES = 12
_F32 = 4


@dataclass(frozen=True, slots=True)
class SizeAssumptions:
    """What sizes depend on besides the weights.

    Attributes:
        kv_type: element type of the KV cache.
        seq_len: positions a decode step sees, for the prediction.
        batch_size: most tokens of a prompt computed at once.
        context_bytes: what the driver takes; 0 where it is not part of the budget.
        neurons_move: they may, while a text is written.
    """

    kv_type: KVType
    seq_len: int
    batch_size: int
    context_bytes: int = CONTEXT_BYTES
    neurons_move: bool = False


def model_sizes(model: Model, assumed: SizeAssumptions) -> ModelSizes:
    """Add everything up, at the model's context length.

    Args:
        model: on the CPU, its predictors attached.
        assumed: what else counts.
    """
    ops, config, weights = model.ops, model.config, model.weights
    output = [weights.output]
    norm = 0 if weights.output_norm is None else _norm_bytes(ops, weights.output_norm)
    layers = tuple(
        _layer(model, number, layer, assumed) for number, layer in enumerate(weights.layers)
    )
    return ModelSizes(
        layers=layers,
        num_neurons=config.intermediate_size,
        hidden_size=config.hidden_size,
        output_bytes=_device_linears(ops, output) + norm,
        overhead_bytes=assumed.context_bytes
        + _workspace_bytes(model, assumed)
        + (_spare_bytes(model, layers) if assumed.neurons_move else 0),
        is_parallel=model.architecture.is_parallel,
        host_output_bytes=_host_linears(ops, output) + norm,
    )


def _workspace_bytes(model: Model, assumed: SizeAssumptions) -> int:
    config = model.config
    tokens = min(assumed.batch_size, model.context_length)
    widths = _WIDE_ARRAYS * config.intermediate_size + _NARROW_ARRAYS * config.hidden_size
    arrays = _F32 * (tokens * widths + 8 * config.vocab_size)
    return _POOLS_BYTES + _DECODED_BYTES + 2 * CHUNK_BYTES + arrays


def _spare_bytes(model: Model, sizes: Sequence[LayerSizes]) -> int:
    """Of slots kept free; neurons of layers with a predictor and a row of down each can move."""
    pairs = zip(model.weights.layers, sizes, strict=True)
    return sum(
        SPARE_NEURONS * size.neuron_bytes
        for layer, size in pairs
        if layer.ffn.predictor is not None and layer.ffn.is_down_transposed
    )


def _layer(model: Model, number: int, layer: LayerWeights, assumed: SizeAssumptions) -> LayerSizes:
    ops, config = model.ops, model.config
    linears = (*layer.qkv, layer.attn_output)
    norms = sum(_norm_bytes(ops, norm) for norm in layer.norms.values())
    # The bias of down is added on the GPU, once, whoever computes the neurons.
    down = layer.ffn.down
    norms += _bias_bytes(ops, down.bias)
    per_position = kv_bytes_per_position(config, assumed.kv_type) // config.num_layers
    num_attended = min(assumed.seq_len, config.sliding_window or assumed.seq_len)
    device, host = _device_neuron(ops, layer.ffn), _host_neuron(ops, layer.ffn)
    device_reads = _reads(model.layer_kinds[number], device)
    host_reads = _reads(model.layer_kinds[number], host)
    predictor = layer.ffn.predictor
    return LayerSizes(
        attention_bytes=_device_linears(ops, linears) + norms,
        kv_bytes=per_position * (-(-model.context_length // BLOCK_SIZE) * BLOCK_SIZE),
        predictor_bytes=0 if predictor is None else _device_predictor(ops, predictor),
        neuron_bytes=device.deciding + device.rest + _TABLE_BYTES,
        idle_bytes=device_reads[0],
        active_bytes=device_reads[1],
        kv_read_bytes=per_position * num_attended,
        host=HostReads(
            attention_bytes=_host_linears(ops, linears) + norms,
            predictor_bytes=0 if predictor is None else _host_predictor(ops, predictor),
            idle_bytes=host_reads[0],
            active_bytes=host_reads[1],
            down_bytes=0 if layer.ffn.is_down_transposed else ops.matrix_bytes(down.matrix),
        ),
    )


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
    return device_bytes(ops.matrix_format(linear.matrix), 1, columns) + (_F32 if linear.bias else 0)


def _device_predictor(ops: SomeOps, predictor: SomePredictor) -> int:
    matrices = [] if predictor.fc1 is None else [predictor.fc1]
    matrices += [stage.matrix for stage in predictor.stages]
    return sum(_device_matrix(ops, matrix) for matrix in matrices) + _predictor_biases(
        ops, predictor
    )


def _host_predictor(ops: SomeOps, predictor: SomePredictor) -> int:
    matrices = [] if predictor.fc1 is None else [predictor.fc1]
    matrices += [stage.matrix for stage in predictor.stages]
    return sum(ops.matrix_bytes(matrix) for matrix in matrices) + _predictor_biases(ops, predictor)


def _predictor_biases(ops: SomeOps, predictor: SomePredictor) -> int:
    biases = [predictor.center, *(stage.bias for stage in predictor.stages)]
    return sum(_bias_bytes(ops, bias) for bias in biases)


def _device_linears(ops: SomeOps, linears: Sequence[SomeLinear]) -> int:
    return sum(_device_matrix(ops, x.matrix) + _bias_bytes(ops, x.bias) for x in linears)


def _host_linears(ops: SomeOps, linears: Sequence[SomeLinear]) -> int:
    return sum(ops.matrix_bytes(x.matrix) + _bias_bytes(ops, x.bias) for x in linears)


def _device_matrix(ops: SomeOps, matrix: Matrix) -> int:
    return device_bytes(ops.matrix_format(matrix), *ops.matrix_shape(matrix))


def _norm_bytes(ops: SomeOps, norm: Norm) -> int:
    return _bias_bytes(ops, norm.weight) + _bias_bytes(ops, norm.bias)


def _bias_bytes(ops: SomeOps, vector: Vector | None) -> int:
    return 0 if vector is None else _F32 * len(ops.vector_values(vector))
