"""Sizes and constants of a model, read once from GGUF metadata.

Names are ours (Hugging Face's for sizes); `gguf/keys.py` has those of the files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from powerinfer import _plugins
from powerinfer.gguf import GGUFFile, keys
from powerinfer.models.activation import resolve_activation
from powerinfer.models.architecture import AbsentParts, Architecture, NormKind, Rotation, no_state
from powerinfer.models.attention import (
    LayerAttention,
    read_attention,
    read_head_dim,
    vary_heads,
)
from powerinfer.models.experts import ExpertsConfig, read_experts
from powerinfer.models.metadata import Metadata
from powerinfer.models.mixers import StateMixer
from powerinfer.models.rope import RopeConfig, read_rope
from powerinfer.models.scales import Scales, Sizes, read_scales
from powerinfer.values import Activation

__all__ = ["ModelConfig", "read_config"]

# Far above any published model (126 layers, 53248 neurons, 262144 tokens), and far below what could
# exhaust memory before the shapes of tensors are checked.
_MAX_LAYERS = 1024
_MAX_HEADS = 1 << 14
_MAX_SIZE = 1 << 20
_MAX_CONTEXT = 1 << 31

# Values of `powerinfer.layout`.
_LAYOUTS = ("rows",)

EMBEDDING = "token_embd.weight"
POSITION_EMBEDDING = "position_embd.weight"
QK_NORMS = ("attn_q_norm", "attn_k_norm")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants that determine layers and tensor shapes.

    Attributes:
        intermediate_size: neurons in one FFN, or in one expert; the most if layers differ, 0 if no
            layer has an FFN.
        num_heads: query heads of layers with attention; 0 if no layer has it, like the next two.
        num_kv_heads: key and value heads of layers with attention; divides `num_heads`. If layers
            differ, that of the last one, like `head_dim`; `attention` has those of each.
        head_dim: width of a head (not always hidden_size / num_heads).
        context_length: longest sequence of the training.
        norm_eps: added under the root by norms.
        attention: settings of each layer's attention; those of layers with state have no effect.
        state_mixers: the mixer of each layer with state, by the number of the layer.
        max_positions: number of learned positions, a hard limit on sequences; None if there are
            none.
        is_post_norm: norms follow attention and FFN instead of preceding them.
        absent: layers without a mixer, or without an FFN.
        layer_sizes: neurons in the FFN of each layer, or in one of its experts, and experts that a
            token uses there; empty if layers are alike. See `of_layer`.
        num_nextn_layers: blocks behind these layers that predict further tokens; they are not run.
        per_layer_size: columns of each layer in the per-layer embedding; 0 without one.
        layers_differ: see `Architecture`.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    activation: Activation
    attention: tuple[LayerAttention, ...]
    scales: Scales
    max_positions: int | None = None
    is_post_norm: bool = False
    experts: ExpertsConfig | None = None
    state_mixers: Mapping[int, StateMixer] = field(default_factory=dict)
    absent: AbsentParts = field(default_factory=AbsentParts)
    layer_sizes: tuple[tuple[int, int], ...] = ()
    num_nextn_layers: int = 0
    per_layer_size: int = 0
    layers_differ: bool = False

    @property
    def num_experts(self) -> int:
        """Number of experts per layer; 0 for dense models."""
        return 0 if self.experts is None else self.experts.num_experts

    @property
    def num_neurons(self) -> int:
        """Number of neurons per layer, all experts included but not a shared one."""
        return self.intermediate_size * max(1, self.num_experts)

    def of_layer(self, number: int) -> "ModelConfig":
        """Copy with the sizes of one layer's FFN."""
        if not self.layer_sizes:
            return self
        size, num_used = self.layer_sizes[number]
        experts = None if self.experts is None else replace(self.experts, num_used=num_used)
        return replace(self, intermediate_size=size, experts=experts, layer_sizes=())

    @property
    def expert_hidden_size(self) -> int:
        """Width of the input and output of experts."""
        return (self.experts.latent_size if self.experts else 0) or self.hidden_size

    @property
    def has_ffns(self) -> bool:
        """Whether any layer has an FFN."""
        return len(self.absent.ffns) < self.num_layers

    @property
    def counted_layers(self) -> list[int]:
        """Numbers of the layers whose neurons are counted and predicted: all that are alike.

        They have an FFN, in a mixture of experts one with experts.
        """
        first = 0 if self.experts is None else self.experts.num_dense_layers
        return [n for n in range(first, self.num_layers) if n not in self.absent.ffns]

    @property
    def attention_layers(self) -> list[LayerAttention]:
        """Settings of the layers that attend to keys and values."""
        layers = enumerate(self.attention)
        others = self.state_mixers.keys() | self.absent.mixers
        return [layer for number, layer in layers if number not in others]

    @property
    def kv_layers(self) -> list[LayerAttention]:
        """Settings of the layers that have keys and values of their own."""
        return [layer for layer in self.attention_layers if layer.kv_layer is None]

    @property
    def gpu_obstacle(self) -> str | None:
        """What keeps all layers on the CPU for now; None if they may lie on a GPU."""
        if self.state_mixers:
            return "layers with a state"
        if self.expert_hidden_size != self.hidden_size:
            return "experts in a latent space"
        return "layers with heads of their own" if self.layers_differ else None

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state in all layers; 0 for models without state."""
        return 4 * sum(mixer.state_size for mixer in self.state_mixers.values())

    @property
    def sliding_window(self) -> int | None:
        """Positions a token sees in layers with a window, itself included; None without windows."""
        return next((layer.window for layer in self.attention if layer.window is not None), None)

    @property
    def rope(self) -> RopeConfig | None:
        """Rotary embedding of layers without a window, or of all; None if no layer rotates."""
        rotating = [layer for layer in self.attention if layer.rope is not None]
        return min(rotating, key=lambda layer: layer.window or 0).rope if rotating else None

    def num_attended(self, seq_len: int) -> int:
        """Positions seen by the last of `seq_len` tokens, summed over the layers."""
        return sum(layer.num_attended(seq_len) for layer in self.attention_layers)

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim


def read_config(
    file: GGUFFile, architecture: Architecture, activation: Activation | str | None = None
) -> ModelConfig:
    """Read and check the hyperparameters of a file; `activation` overrides its own.

    Raises:
        GGUFError: a key is missing, has the wrong type, is out of range or contradicts another.
        UnsupportedError: a feature is not implemented (a layout, experts, unequal key and value
            heads).
    """
    metadata = Metadata(file, architecture.name)
    _reject_unsupported(metadata)
    sizes = _read_sizes(metadata, architecture)
    rope = _read_rope(metadata, architecture, sizes.head_dim)
    context_length = metadata.integer(keys.CONTEXT_LENGTH, high=_MAX_CONTEXT)
    max_positions = _max_positions(metadata, architecture)
    experts = read_experts(metadata, architecture.experts)
    rules = architecture.experts if experts else None
    size_key = keys.INTERMEDIATE_SIZE if rules is None else rules.size_key
    absent = architecture.absent_parts(metadata, sizes.num_layers)
    layer_sizes = _layer_sizes(metadata, size_key, sizes.num_layers, absent)
    are_alike = len(set(layer_sizes) - {(0, 0)}) <= 1
    attention = read_attention(metadata, architecture.windows, rope, sizes)
    if architecture.layers_differ:
        attention = vary_heads(metadata, attention, sizes.num_heads)
    return ModelConfig(
        architecture=architecture.name,
        hidden_size=sizes.hidden_size,
        intermediate_size=max(size for size, _ in layer_sizes),
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=_vocab_size(metadata),
        context_length=min(context_length, max_positions or context_length),
        norm_eps=metadata.number(
            _norm_eps_key(metadata, architecture), default=architecture.norm_eps, high=1.0
        ),
        activation=resolve_activation(
            file,
            activation,
            powerinfer_default=architecture.powerinfer_activation,
            default=architecture.activation,
        ),
        attention=attention,
        scales=read_scales(metadata, architecture.scales(sizes)),
        max_positions=max_positions,
        is_post_norm=architecture.may_be_post_norm and file.get_bool(keys.POST_NORM, default=False),
        experts=experts,
        state_mixers=architecture.state_mixers(metadata, sizes),
        absent=absent,
        layer_sizes=() if are_alike else tuple(layer_sizes),
        num_nextn_layers=metadata.integer(keys.NUM_NEXTN_LAYERS, default=0, low=0),
        per_layer_size=metadata.integer(keys.PER_LAYER_SIZE, default=0, low=0, high=_MAX_SIZE)
        if architecture.layers_differ
        else 0,
        layers_differ=architecture.layers_differ,
    )


def _read_rope(metadata: Metadata, architecture: Architecture, head_dim: int) -> RopeConfig | None:
    is_off = architecture.rotation is Rotation.SWITCHED and not metadata.file.get_bool(
        metadata.key(keys.ROPE_FINETUNED), default=True
    )
    if (
        architecture.position_offset is not None
        or architecture.rotation is Rotation.NEVER
        or is_off
    ):
        return None
    rope = read_rope(metadata, head_dim, is_interleaved=architecture.is_rope_interleaved)
    return replace(rope, rounds_ramp=architecture.rounds_yarn_ramp)


def _norm_eps_key(metadata: Metadata, architecture: Architecture) -> str:
    """Key of the epsilon of norms."""
    return metadata.rms_epsilon if architecture.norm is NormKind.RMS else keys.LAYER_NORM_EPSILON


def _layer_sizes(
    metadata: Metadata, size_key: str, num_layers: int, absent: AbsentParts
) -> list[tuple[int, int]]:
    """Neurons of each layer's FFN or experts, and experts used; 0 in layers without an FFN."""
    if len(absent.ffns) == num_layers:
        return [(0, 0)] * num_layers
    low = 0 if absent.ffns else 1
    sizes = metadata.integers(size_key, num_layers, low=low, high=_MAX_SIZE)
    used = metadata.integers(keys.NUM_USED_EXPERTS, num_layers, default=0, low=0)
    found = []
    for number, (size, num_used) in enumerate(zip(sizes, used, strict=True)):
        if number not in absent.ffns and not size:
            raise metadata.error(
                metadata.key(size_key), f"is 0 in layer {number}, which has an FFN"
            )
        found.append((0, 0) if number in absent.ffns else (size, num_used))
    return found


def _max_positions(metadata: Metadata, architecture: Architecture) -> int | None:
    """Number of learned positions; None if the table is absent or malformed.

    `context_length` cannot be trusted here: converters store the number of rows, two more than OPT
    has positions.
    """
    table = metadata.file.tensors.get(POSITION_EMBEDDING)
    if architecture.position_offset is None or table is None or len(table.shape) != 2:
        return None
    return max(1, int(table.shape[0]) - architecture.position_offset)


def _read_sizes(metadata: Metadata, architecture: Architecture) -> Sizes:
    hidden_size = metadata.integer(keys.HIDDEN_SIZE, high=_MAX_SIZE)
    num_blocks = metadata.integer(keys.NUM_LAYERS, high=_MAX_LAYERS)
    num_layers = num_blocks - metadata.integer(
        keys.NUM_NEXTN_LAYERS, default=0, low=0, high=num_blocks - 1
    )
    if not architecture.has_attention:
        return Sizes(hidden_size, num_layers, 0, 0, 0)
    num_heads = metadata.integer(keys.NUM_HEADS, high=_MAX_HEADS)
    num_kv_heads = _read_kv_heads(metadata, architecture, num_layers, num_heads)
    head_dim = _read_head_dim(metadata, hidden_size, num_heads)
    return Sizes(hidden_size, num_layers, num_heads, num_kv_heads, head_dim)


def _read_kv_heads(
    metadata: Metadata, architecture: Architecture, num_layers: int, num_heads: int
) -> int:
    """Number of heads, which layers with attention share; layers with state may say 0."""
    low = 1 if architecture.state_mixers is no_state else 0
    counts = metadata.integers(
        keys.NUM_KV_HEADS, num_layers, default=num_heads, low=low, high=_MAX_HEADS
    )
    if architecture.layers_differ:
        return counts[-1]
    distinct = sorted(set(counts) - {0})
    if len(distinct) != 1:
        raise metadata.error(
            metadata.key(keys.NUM_KV_HEADS),
            f"is {', '.join(map(str, distinct)) or 0} in {'different' if distinct else 'all'} "
            "layers; expected one number of heads for all layers with attention",
        )
    num_kv_heads = distinct[0]
    if num_heads % num_kv_heads:
        raise metadata.error(
            metadata.key(keys.NUM_KV_HEADS),
            f"is {num_kv_heads}; expected a divisor of the {num_heads} query heads",
        )
    return num_kv_heads


def _read_head_dim(metadata: Metadata, hidden_size: int, num_heads: int) -> int:
    if metadata.has(keys.HEAD_DIM):
        head_dim = 0
    elif hidden_size % num_heads:
        raise metadata.error(
            metadata.key(keys.NUM_HEADS),
            f"is {num_heads}, which does not divide embedding_length {hidden_size}, "
            "and there is no attention.key_length",
        )
    else:
        head_dim = hidden_size // num_heads
    head_dim = read_head_dim(metadata, keys.HEAD_DIM, keys.VALUE_DIM, head_dim)
    if num_heads * head_dim > _MAX_SIZE:
        raise metadata.error(
            metadata.key(keys.NUM_HEADS),
            f"is {num_heads} of width {head_dim}: more than {_MAX_SIZE} in all",
        )
    return head_dim


def _vocab_size(metadata: Metadata) -> int:
    """Length of the token list or, without one, rows of the embedding."""
    tokens = metadata.file.metadata.get(keys.TOKENS)
    if isinstance(tokens, list) and tokens:
        return len(tokens)
    embedding = metadata.file.tensors.get(EMBEDDING)
    if embedding is not None and len(embedding.shape) == 2:
        return int(embedding.shape[0])
    raise metadata.error(keys.TOKENS, f"is missing or empty and so is the tensor {EMBEDDING}")


def _reject_unsupported(metadata: Metadata) -> None:
    layout = metadata.file.get_str(keys.LAYOUT, _LAYOUTS[0])
    if layout not in _LAYOUTS:
        raise _plugins.unsupported(f"{metadata.file.paths[0]}: layout", layout, _LAYOUTS)
