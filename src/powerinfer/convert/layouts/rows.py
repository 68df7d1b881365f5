"""Layout ``rows``: the down projection transposed, so that neuron i is row i of all FFN matrices.

``blk.N.ffn_down.weight`` [hidden_size, intermediate_size] becomes ``blk.N.ffn_down_t.weight``
[intermediate_size, hidden_size]; likewise ``blk.N.ffn_down_exps.weight`` [num_experts, hidden_size,
intermediate_size] becomes ``blk.N.ffn_down_exps_t.weight`` and a shared expert's
``blk.N.ffn_down_shexp.weight`` becomes ``blk.N.ffn_down_shexp_t.weight``. Biases are renamed too,
as in PowerInfer's files. Tensors of single experts (``blk.N.ffn_gate.3.weight``) are first merged.
Plain numbers are moved; blocks are re-encoded, since they run along the other dimension afterwards.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from powerinfer.convert.encode_again import WITHOUT_BLOCKS, encoded_again, transposed
from powerinfer.convert.layout import KEPT_FORMATS, ErrorSum, Layout, PackedTensor
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor, keys
from powerinfer.quant import QuantFormat, get_format

__all__ = ["LAYOUT"]

_DOWN = re.compile(r"(blk\.[0-9]+\.ffn_down(?:(?P<experts>_exps)|_shexp)?)\.(?P<part>weight|bias)")
_OF_ONE_EXPERT = re.compile(
    r"(blk\.[0-9]+\.ffn_(?:gate|up|down))\.(?P<number>0|[1-9][0-9]{0,5})\.(?P<part>weight|bias)"
)
_FALLBACKS = ("q8_0", "f16")


def _pack(file: GGUFFile) -> tuple[Tensor | PackedTensor, ...]:
    found: dict[str, Tensor | dict[int, Tensor]] = {}
    for tensor in file.tensors.values():
        match = _OF_ONE_EXPERT.fullmatch(tensor.name)
        if match is None:
            found[tensor.name] = tensor
            continue
        name = f"{match[1]}_exps.{match['part']}"
        experts = found.setdefault(name, {})
        if isinstance(experts, Tensor) or name in file.tensors:
            raise GGUFError(f"{file.path}: has both {name} and {tensor.name}; expected one of them")
        experts[int(match["number"])] = tensor
    return tuple(
        _turned(name, tensors.shape, (tensors,)) or tensors
        if isinstance(tensors, Tensor)
        else _merged(file, name, tensors)
        for name, tensors in found.items()
    )


def _merged(file: GGUFFile, name: str, by_number: dict[int, Tensor]) -> PackedTensor:
    last = by_number[max(by_number)]
    num_experts = max(_num_experts(file), max(by_number) + 1)
    missing = next((number for number in range(num_experts) if number not in by_number), None)
    if missing is not None:
        raise GGUFError(
            f"{file.path}: expert {missing} is missing beside {last.name}; expected {num_experts} "
            "experts, numbered from 0"
        )
    experts = tuple(by_number[number] for number in range(num_experts))
    first = experts[0]
    for other in experts:
        if (other.shape, other.format) != (first.shape, first.format):
            raise UnsupportedError(
                f"{file.path}: {other.name} is {other.format} {list(other.shape)}, {first.name} is "
                f"{first.format} {list(first.shape)}; experts must have one format and shape"
            )
    shape = (num_experts, *first.shape)
    return _turned(name, shape, experts) or PackedTensor(
        name, shape, first.format, partial(_copied, experts), experts
    )


def _num_experts(file: GGUFFile) -> int:
    """Number of experts in the metadata; 0 if missing."""
    architecture = file.get_str(keys.ARCHITECTURE, "")
    return file.get_int(keys.of_architecture(architecture, keys.NUM_EXPERTS), 0)


def _turned(name: str, shape: tuple[int, ...], sources: tuple[Tensor, ...]) -> PackedTensor | None:
    """Transpose a down projection or rename its bias; None for other tensors.

    Args:
        name: name with all experts in one tensor.
        shape: shape with all experts in one tensor, outermost dimension first.
        sources: the tensor itself, or those of its experts in order.
    """
    match, format_name = _DOWN.fullmatch(name), sources[0].format
    if match is None:
        return None
    name = f"{match[1]}_t.{match['part']}"
    if match["part"] == "bias" or len(shape) != (3 if match["experts"] else 2):
        return PackedTensor(name, shape, format_name, partial(_copied, sources), sources)
    shape = (*shape[:-2], shape[-1], shape[-2])
    matrices = [matrix for source in sources for matrix in _matrices(source)]
    if format_name in WITHOUT_BLOCKS:
        return PackedTensor(name, shape, format_name, partial(transposed, matrices), sources)
    target = _target_format(get_format(format_name), shape[-1])
    error = ErrorSum()
    again = partial(encoded_again, matrices, target, error, is_transposed=True)
    return PackedTensor(name, shape, target.name, again, sources, error)


def _matrices(tensor: Tensor) -> tuple[Tensor, ...]:
    """Matrices of a tensor [rows, columns] or [num_experts, rows, columns], as views."""
    if len(tensor.shape) == 2:
        return (tensor,)
    data = tensor.data.reshape(tensor.shape[0], -1) if tensor.num_bytes else ()
    return tuple(replace(tensor, shape=tensor.shape[1:], data=part) for part in data)


def _target_format(source: QuantFormat, row: int) -> QuantFormat:
    """Keep a format of `KEPT_FORMATS` that fits rows of this length, else take the next best."""
    for fmt in (source, *map(get_format, _FALLBACKS)):
        if fmt.name in KEPT_FORMATS and row % fmt.block_size == 0:
            return fmt
    raise AssertionError("f16 fits every row")


def _copied(tensors: Sequence[Tensor]) -> Iterator[npt.NDArray[np.uint8]]:
    for tensor in tensors:
        yield tensor.data


LAYOUT = Layout("rows", _pack)
