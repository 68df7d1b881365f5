"""Formats of a quantized file's tensors, chosen as llama.cpp does.

Norms, biases, routers, positions and the projection of per-layer embeddings are kept. The head, or
a tied embedding, gets more bits. In mixtures (``_S`` and ``_M``) so do value projections and down
projections of some layers: the first and last eighth of the layers and every third in between. Rows
that are not whole blocks get a format of smaller blocks, or F16.

Four differences from llama.cpp: predictors are Q8_0 with any quantized format but Q4_0,
``ffn_down_t`` counts as a down projection, quantized tensors are kept unless the new format takes
fewer bits or has plain numbers, and ``ssm_alpha`` and ``ssm_beta`` are kept: they are small, and
what they decide stays in the state of a sequence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase

from powerinfer.convert.encode_again import WITHOUT_BLOCKS
from powerinfer.convert.quantize.file_types import FileType
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, keys
from powerinfer.quant import get_format, type_of_name

__all__ = ["KeptFormat", "choose_formats", "is_quantizable", "is_row_per_neuron"]

_LAYER = re.compile(r"blk\.([0-9]+)\.")
_ROWS_OF_NEURONS = re.compile(r"ffn_down(_exps|_shexp)?_t\.weight$")
_PREDICTOR = re.compile(r"blk\.[0-9]+\.fc[12](_exps)?\.weight")
# Name parts of matrices that are too small or too delicate; most belong to other architectures.
_DELICATE = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "position_embd",
    "token_types.weight",
    "attn_rel_b.weight",
    "ssm_conv1d",
    "ssm_alpha.weight",
    "ssm_beta.weight",
    "shortconv.conv.weight",
    "per_layer_model_proj",
)
# Replacements for rows that are not whole blocks of 256.
_OF_SMALLER_BLOCKS = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
# Mixtral: a little memory for much accuracy.
_EXPERTS_OF_MIXTRAL = 8


@dataclass(frozen=True, slots=True)
class KeptFormat:
    """Requested format of tensors whose names match a pattern of ``*``, ``?`` and ``[...]``."""

    pattern: str
    format: str


class _Role(Enum):
    """Roles of matrices that affect their format."""

    HEAD = auto()
    EMBEDDING = auto()
    VALUES = auto()
    KEYS = auto()
    ATTENTION_OUTPUT = auto()
    DOWN = auto()
    PREDICTOR = auto()
    OTHER = auto()


# Name parts in order of precedence.
_ROLES = {
    "attn_qkv.weight": _Role.VALUES,
    "attn_kv_b.weight": _Role.VALUES,
    "attn_v.weight": _Role.VALUES,
    "attn_k.weight": _Role.KEYS,
    "attn_output.weight": _Role.ATTENTION_OUTPUT,
    "ffn_up": _Role.OTHER,
    "ffn_gate": _Role.OTHER,
    "ffn_down": _Role.DOWN,
}


def is_quantizable(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix whose format may change."""
    dimensions = len(tensor.shape)
    while dimensions and tensor.shape[len(tensor.shape) - dimensions] == 1:
        dimensions -= 1
    is_weight = dimensions > 1 and tensor.name.endswith("weight")
    return is_weight and not any(part in tensor.name for part in _DELICATE)


def is_row_per_neuron(name: str) -> bool:
    """Return whether a tensor is a down projection with a row, thus a single input, per neuron."""
    return _ROWS_OF_NEURONS.search(name) is not None


def choose_formats(
    file: GGUFFile,
    file_type: FileType,
    kept: Sequence[KeptFormat] = (),
    *,
    has_importance: bool = False,
) -> dict[str, str]:
    """Choose the format of every tensor that `is_quantizable`, by name.

    Args:
        kept: requested formats; the first matching pattern counts.

    Raises:
        GGUFError: a pattern matches no matrix, or a mixture's tensor belongs to a layer that the
            model does not have.
    """
    tensors = sorted(filter(is_quantizable, file.tensors.values()), key=_place)
    for wish in kept:
        if not any(fnmatchcase(tensor.name, wish.pattern) for tensor in tensors):
            raise GGUFError(
                f"{file.path}: no matrix has a name like {wish.pattern!r:.80}; norms, biases and "
                "routers stay as they are",
                remedy="use names from the file's list of tensors",
            )
    mixture = _Mixture(file, file_type, tensors, has_importance=has_importance)
    chosen = {tensor.name: _worthwhile(tensor, mixture.format_of(tensor)) for tensor in tensors}
    for wish in reversed(kept):
        for tensor in tensors:
            if fnmatchcase(tensor.name, wish.pattern):
                chosen[tensor.name] = _fitting(wish.format, tensor.shape[-1])
    return chosen


def _place(tensor: Tensor) -> tuple[int, str]:
    """Sort key by layer, which determines the first layers of a mixture."""
    match = _LAYER.match(tensor.name)
    return int(match[1]) if match else -1, tensor.name


def _fitting(format_name: str, row: int) -> str:
    """Keep the format if it fits rows of this length, else the next best."""
    candidates = (format_name, _OF_SMALLER_BLOCKS.get(format_name, "f16"))
    return next((name for name in candidates if not row % get_format(name).block_size), "f16")


def _worthwhile(tensor: Tensor, format_name: str) -> str:
    """Choose a fitting format; quantized tensors keep theirs if the new one takes no fewer bits."""
    fitting = _fitting(format_name, tensor.shape[-1])
    before, after = type_of_name(tensor.format), type_of_name(fitting)
    if before is None or after is None or 1 in (before.block_size, after.block_size):
        return fitting
    is_smaller = after.block_bytes * before.block_size < before.block_bytes * after.block_size
    return fitting if is_smaller else tensor.format


class _Mixture:
    """Rules for one file and type."""

    def __init__(
        self,
        file: GGUFFile,
        file_type: FileType,
        tensors: Sequence[Tensor],
        *,
        has_importance: bool,
    ) -> None:
        self._file = file
        self._type = file_type
        self._has_importance = has_importance
        self._is_tied = "output.weight" not in file.tensors
        self._is_falcon = file.metadata.get(keys.ARCHITECTURE) == "falcon"
        self._num_layers = self._number(keys.NUM_LAYERS)
        self._num_experts = self._number(keys.NUM_EXPERTS)
        self._shares_values = self._is_70b()
        self._values = [t.name for t in tensors if self._role(t.name) is _Role.VALUES]
        self._downs = [t.name for t in tensors if self._role(t.name) is _Role.DOWN]

    def format_of(self, tensor: Tensor) -> str:
        """Format of one matrix, assuming that its rows are long enough."""
        if self._type.format in WITHOUT_BLOCKS:
            return self._type.format
        role, name = self._role(tensor.name), tensor.name
        if role is _Role.HEAD:
            return self._of_head(tensor.shape[-1])
        if role is _Role.VALUES:
            return self._of_values(self._values.index(name))
        if role is _Role.KEYS and self._is_mixtral:
            return "q8_0"
        if role is _Role.DOWN:
            return self._of_down(name)
        if role is _Role.ATTENTION_OUTPUT and self._is_mixtral and not self._is_falcon:
            return "q5_k" if self._type.format == "q4_k" else self._type.format
        if role is _Role.PREDICTOR:
            return "q4_0" if self._type.format == "q4_0" else "q8_0"
        return self._type.format

    @property
    def _is_mixtral(self) -> bool:
        return self._num_experts == _EXPERTS_OF_MIXTRAL

    def _of_head(self, row: int) -> str:
        usual = self._type.format
        if self._is_falcon or row % get_format(usual).block_size:
            return "q8_0"
        return usual if usual == "q8_0" else "q6_k"

    def _of_values(self, place: int) -> str:
        chosen, name = self._type.format, self._type.name
        if name in ("Q4_K_M", "Q5_K_M") and _needs_more_bits(place, len(self._values)):
            chosen = "q6_k"
        elif name == "Q4_K_S" and place < 4:
            chosen = "q5_k"
        if self._shares_values and chosen == "q4_k":
            chosen = "q5_k"
        return "q8_0" if self._is_mixtral else chosen

    def _of_down(self, name: str) -> str:
        count, usual = self._num_layers, self._type.format
        layer = self._layer(name) if self._num_experts > 1 else self._downs.index(name)
        more = _needs_more_bits(layer, count)
        if self._type.name == "Q4_K_M":
            if not self._is_falcon:
                return "q6_k" if more else usual
            return "q6_k" if layer < count // 16 else "q5_k" if more else usual
        if self._type.name == "Q5_K_M":
            return "q6_k" if more else usual
        if layer >= count // 8:
            return usual
        if self._type.name == "Q4_K_S":
            return usual if self._is_falcon else "q5_k"
        # Weighted 4 and 5 bits without a minimum can go wrong in the first layers. Rows of neurons
        # are not weighted, and the original PowerInfer only supports Q4_0 and F16 there.
        if self._has_importance and not is_row_per_neuron(name):
            return {"q4_0": "q4_1", "q5_0": "q5_1"}.get(usual, usual)
        return usual

    def _layer(self, name: str) -> int:
        match = _LAYER.match(name)
        if match is None or int(match[1]) >= self._num_layers:
            raise GGUFError(
                f"{self._file.path}: tensor {name} belongs to no layer of the model, which has "
                f"{self._num_layers}"
            )
        return int(match[1])

    def _role(self, name: str) -> _Role:
        if name == "output.weight":
            return _Role.HEAD
        if name in ("token_embd.weight", "per_layer_token_embd.weight"):
            return _Role.HEAD if self._is_tied else _Role.EMBEDDING
        if _PREDICTOR.fullmatch(name):
            return _Role.PREDICTOR
        return next((role for part, role in _ROLES.items() if part in name), _Role.OTHER)

    def _is_70b(self) -> bool:
        """Return whether eight heads share each value projection, as in Llama 2 70B."""
        architecture = self._file.metadata.get(keys.ARCHITECTURE)
        if self._num_layers != 80 or architecture not in ("llama", "qwen2"):
            return False
        heads = self._number(keys.NUM_HEADS)
        return architecture == "qwen2" or self._number(keys.NUM_KV_HEADS, heads) != heads

    def _number(self, key: str, default: int = 0) -> int:
        """Integer of the architecture; the first one of a per-layer list."""
        architecture = self._file.get_str(keys.ARCHITECTURE, "")
        full = keys.of_architecture(architecture, key)
        value = self._file.metadata.get(full)
        if isinstance(value, int) or value is None:
            return self._file.get_int(full, default)
        values = self._file.get_array(full)
        return int(values[0]) if len(values) else default


def _needs_more_bits(layer: int, count: int) -> bool:
    eighth = count // 8
    is_edge = layer < eighth or layer >= 7 * count // 8
    return is_edge or (layer - eighth) % 3 == 2
