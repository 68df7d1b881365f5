"""Types of the native extension; the operations are documented in `powerinfer.ops.protocol`.

Every array must be C-contiguous, of exactly the stated type and in CPU memory (TypeError
otherwise); sizes that do not fit raise `powerinfer.errors.ShapeError`, ids and positions out of
range IndexError. Outputs are written in place and must overlap no input. Nothing here holds the
GIL while it computes; calls with the same team run one after the other.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.values import BoolArray, ByteArray, FloatArray, IntArray

OffsetArray: TypeAlias = npt.NDArray[np.int64]
WordArray: TypeAlias = npt.NDArray[np.uint32]

class ThreadTeam:
    def __init__(
        self, num_threads: int, kernels: str | None = None, joins: bool = False
    ) -> None: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def kernels(self) -> str: ...
    @property
    def busy_s(self) -> float: ...
    def pin(self, cpus: Sequence[int]) -> bool: ...
    def spoil_record(self) -> None: ...
    def unpin(self) -> None: ...

class Vector:
    def __init__(self, values: FloatArray) -> None: ...
    def __len__(self) -> int: ...
    @property
    def values(self) -> FloatArray: ...

class Matrix:
    def __init__(self, data: ByteArray, format_name: str, rows: int, columns: int) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def format(self) -> str: ...

class Arena:
    def __init__(self) -> None: ...

class KVLayer:
    def __init__(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, format_name: str
    ) -> None: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def copy_block(self, source: int, target: int) -> None: ...

class StateLayer:
    def __init__(self, num_slots: int, size: int) -> None: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class RopeTable:
    def __init__(self, cos: FloatArray, sin: FloatArray, is_interleaved: bool) -> None: ...

class Batch:
    def __init__(
        self,
        positions: IntArray,
        sequences: IntArray,
        block_tables: IntArray,
        is_prompt: BoolArray | None = None,
    ) -> None: ...
    def set_states(self, sources: IntArray, targets: IntArray) -> None: ...

class StepRecord:
    def __init__(self) -> None: ...
    def begin(self, team: ThreadTeam) -> None: ...
    def end(self, team: ThreadTeam) -> None: ...
    @property
    def is_complete(self) -> bool: ...
    def run(self, team: ThreadTeam, recorded: Batch, batch: Batch) -> FFNStats: ...

class Router:
    def __init__(
        self,
        matrix: Matrix,
        bias: Vector | None,
        rule: str,
        num_used: int,
        is_normalized: bool,
        selection_bias: Vector | None = None,
        scale: float = 1.0,
        expert_scale: Vector | None = None,
    ) -> None: ...

class FFN:
    def __init__(
        self,
        gate: tuple[Matrix | None, Vector | None],
        up: tuple[Matrix, Vector | None],
        down: tuple[Matrix, Vector | None],
        activation: str,
        threshold: float,
        is_down_transposed: bool,
        is_exact_sparse: bool,
        router: Router | None = None,
        dip: tuple[float, float] = (1.0, 0.0),
    ) -> None: ...
    @property
    def last_decode(self) -> tuple[int, int, int, int]:
        """Of the last call with decode rows: those, batches, neurons that fired, their unions."""
        ...

class FFNStats:
    """What calls did, summed over tokens: neurons, weight bytes, seconds.

    `bytes_read` leaves out those of the predictor; `down_bytes` and `router_bytes` are
    part of it.
    """

    @property
    def active(self) -> int: ...
    @property
    def predicted(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def predictor_bytes(self) -> int: ...
    @property
    def down_bytes(self) -> int: ...
    @property
    def router_bytes(self) -> int: ...
    @property
    def predictor_s(self) -> float: ...
    @property
    def down_s(self) -> float: ...
    @property
    def router_s(self) -> float: ...

class NeuronPredictor:
    def __init__(
        self,
        fc1: Matrix | None,
        center: Vector | None,
        stages: Sequence[tuple[Matrix, Vector | None, float]],
        num_experts: int = 1,
    ) -> None: ...

class Exchange:
    def __init__(
        self,
        team: ThreadTeam,
        x: FloatArray,
        cold: WordArray,
        y: FloatArray,
        flags: WordArray | None,
        status: IntArray,
        watchdog_s: float = 20.0,
        predictor_input: FloatArray | None = None,
        router_input: FloatArray | None = None,
        expert_weights: FloatArray | None = None,
    ) -> None: ...
    def add_layer(self, ffn: FFN, predictor: NeuronPredictor | None = None) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    def run(self, layer: int, num_tokens: int) -> None: ...
    def keep_awake(self, is_awake: bool) -> None: ...
    def stats(self) -> FFNStats: ...
    def raise_failure(self) -> None: ...
    def start_step(self, layers: Sequence[int], num_tokens: int) -> None: ...
    def finish_step(self) -> None: ...
    def abort_step(self) -> None: ...

def keep_freed_memory() -> None: ...
def release_freed_memory() -> None: ...
def cpu_features() -> list[str]: ...
def formats() -> dict[str, tuple[int, int]]: ...
def repacked_formats() -> list[str]: ...
def available_kernels() -> list[str]: ...
def product_names(kernels: str) -> tuple[str, str, str]: ...
def can_repack(format_name: str, columns: int) -> bool: ...
def repack(team: ThreadTeam, matrix: Matrix, arena: Arena) -> Matrix: ...
def expert_matrix(
    pieces: list[Matrix], rows_per_expert: int, arena: Arena, repack: bool
) -> Matrix: ...
def recode(team: ThreadTeam, matrix: Matrix, format_name: str, arena: Arena) -> Matrix: ...
def encode_rows(
    team: ThreadTeam,
    matrix: Matrix,
    format_name: str,
    importance: FloatArray | None,
    out: ByteArray,
) -> tuple[float, float]: ...
def copy_statistics(
    team: ThreadTeam,
    matrix: Matrix,
    copy: Matrix,
    mean: FloatArray,
    variance: FloatArray,
    offset: FloatArray,
    noise: FloatArray,
) -> None: ...
def embed(team: ThreadTeam, table: Matrix, token_ids: IntArray, out: FloatArray) -> None: ...
def all_finite(values: FloatArray) -> bool:
    """Tell whether no number of an array of any shape is NaN or infinite."""
    ...

def write_largest(logits: FloatArray, ids: OffsetArray) -> None:
    """Write the ids of as many of the largest logits as there is room for.

    Largest first, lower id first among equals, NaN last.
    """
    ...

def rms_norm(
    team: ThreadTeam, x: FloatArray, weight: Vector, eps: float, out: FloatArray
) -> None: ...
def layer_norm(
    team: ThreadTeam,
    x: FloatArray,
    weight: Vector,
    bias: Vector | None,
    eps: float,
    out: FloatArray,
) -> None: ...
def take_rows(team: ThreadTeam, x: FloatArray, rows: IntArray, out: FloatArray) -> None: ...
def add(team: ThreadTeam, x: FloatArray, y: FloatArray) -> None: ...
def linear(
    team: ThreadTeam,
    x: FloatArray,
    matrices: list[Matrix],
    biases: list[Vector | None],
    outs: list[FloatArray],
    is_prompt: BoolArray | None = None,
) -> None: ...
def screened_head(
    team: ThreadTeam,
    x: FloatArray,
    matrix: Matrix,
    bias: Vector | None,
    copied: tuple[Matrix, IntArray, FloatArray, float],
    counts: OffsetArray,
    margins: FloatArray,
    out: FloatArray,
) -> int: ...
def rope_and_store(
    team: ThreadTeam,
    q: FloatArray,
    k: FloatArray,
    v: FloatArray,
    cache: KVLayer,
    batch: Batch,
    rope: RopeTable | None,
    head_norms: tuple[Vector, Vector, float, Vector | None] | None = None,
) -> None: ...
def rotate_queries(
    team: ThreadTeam,
    q: FloatArray,
    head_dim: int,
    batch: Batch,
    rope: RopeTable | None,
    norm: Vector | None,
    eps: float,
) -> None: ...
def attention(
    team: ThreadTeam,
    q: FloatArray,
    cache: KVLayer,
    batch: Batch,
    scale: float,
    window: int,
    out: FloatArray,
    sinks: Vector | None = None,
    soft_cap: float = 0.0,
) -> None: ...
def short_conv(
    team: ThreadTeam,
    x: FloatArray,
    weight: Vector,
    num_taps: int,
    state: StateLayer,
    batch: Batch,
    out: FloatArray,
) -> None: ...
def delta_rule(
    team: ThreadTeam,
    mixed: FloatArray,
    gate: FloatArray,
    beta: FloatArray,
    alpha: FloatArray,
    vectors: tuple[Vector, Vector, Vector, Vector],
    eps: float,
    sizes: tuple[int, int, int, int, int],
    state: StateLayer,
    batch: Batch,
    out: FloatArray,
) -> None: ...
def selective_scan(
    team: ThreadTeam,
    x: FloatArray,
    vectors: tuple[Vector, Vector | None, Vector, Vector, Vector, Vector],
    eps: float,
    sizes: tuple[int, int, int, int, int],
    state: StateLayer,
    batch: Batch,
    out: FloatArray,
) -> None: ...
def gate(team: ThreadTeam, x: FloatArray, g: FloatArray) -> None: ...
def gelu_gate(team: ThreadTeam, x: FloatArray, y: FloatArray) -> None: ...
def scale(team: ThreadTeam, x: FloatArray, factor: float) -> None: ...
def ffn(
    team: ThreadTeam,
    x: FloatArray,
    ffn: FFN,
    out: FloatArray,
    predictor: NeuronPredictor | None = None,
    predictor_input: FloatArray | None = None,
    is_prompt: BoolArray | None = None,
    router_input: FloatArray | None = None,
) -> FFNStats: ...
def ffn_active(
    team: ThreadTeam,
    x: FloatArray,
    ffn: FFN,
    offsets: OffsetArray,
    ids: IntArray,
    out: FloatArray,
    is_prompt: BoolArray | None = None,
    router_input: FloatArray | None = None,
) -> FFNStats: ...
def ffn_firing(
    team: ThreadTeam,
    x: FloatArray,
    ffn: FFN,
    out: FloatArray,
    fired: ByteArray,
    router_input: FloatArray | None = None,
) -> FFNStats: ...
def count_fired(fired: ByteArray, counts: OffsetArray) -> None: ...
def ffn_weighted(
    team: ThreadTeam,
    x: FloatArray,
    ffn: FFN,
    offsets: OffsetArray,
    ids: IntArray,
    weights: FloatArray,
    out: FloatArray,
    is_prompt: BoolArray | None = None,
) -> FFNStats: ...
def route(
    team: ThreadTeam,
    ffn: FFN,
    x: FloatArray,
    ids_out: IntArray,
    weights_out: FloatArray,
    is_prompt: BoolArray | None = None,
) -> None: ...
def predict(
    team: ThreadTeam,
    x: FloatArray,
    predictor: NeuronPredictor,
    is_prompt: BoolArray | None = None,
) -> tuple[OffsetArray, IntArray]: ...
def gather_rows(
    team: ThreadTeam, data: ByteArray, row_bytes: int, row_ids: IntArray, ahead: int = 0
) -> int: ...
def read_bytes(
    team: ThreadTeam, arrays: list[ByteArray], ahead: int, chunk_bytes: int, streams: int
) -> int: ...
def read_kind(format_name: str) -> str: ...
def read_way(team: ThreadTeam, kind: str) -> tuple[int, int, int, int]: ...
def set_read_way(team: ThreadTeam, kind: str, way: tuple[int, int, int, int]) -> None: ...
def encoded_rows(team: ThreadTeam, matrix: Matrix, ids: IntArray, out: ByteArray) -> None: ...
def encoded_format(matrix: Matrix) -> str: ...
