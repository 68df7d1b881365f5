"""Memory requested by the pickle of a tensor, read without executing it.

torch's ``weights_only`` executes nothing foreign either, but it allocates what a pickle requests:
``bytearray(1 << 40)``, or a storage that is larger than the file.
"""

import pickle
import pickletools
from typing import IO

__all__ = ["declared_bytes"]

# Bytes per number of the storage classes that `torch.save` names; the untyped one counts bytes.
_STORAGES = {
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "UntypedStorage": 1,
}
_FUNCTIONS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    *(f"torch {name}" for name in ("uint16", "uint32", "uint64")),
}
_INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1"}
_MEMO = {"BINPUT", "LONG_BINPUT"}
# Operations that reach names by other ways than GLOBAL.
_REFUSED = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID"}


def declared_bytes(stream: IO[bytes], *, is_older: bool = False) -> int | None:
    """Return the size in bytes of the storage that a pickle refers to, or None.

    Args:
        stream: at the beginning of the pickle; afterwards at its end.
        is_older: whether the container is that of torch before version 1.6.

    Raises:
        pickle.UnpicklingError: it contains operations that `torch.save` of a tensor does not write.
        ValueError: it is damaged.
    """
    item_bytes: list[int] = []
    declared: list[int] = []
    # Names and arguments of the last operations, without those that fill the memo.
    before: list[tuple[str, object]] = []
    for operation, argument, _ in pickletools.genops(stream):
        name = operation.name
        if name == "GLOBAL":
            item_bytes += _item_bytes(str(argument))
        elif name in _REFUSED:
            raise pickle.UnpicklingError(f"a tensor needs no {name}")
        elif name == "BINPERSID":
            declared.append(_num_items(before, is_older=is_older))
        if name not in _MEMO:
            before = [*before[-2:], (name, argument)]
    if len(declared) != len(item_bytes) or len(declared) > 1:
        raise pickle.UnpicklingError("a tensor has one storage")
    return declared[0] * item_bytes[0] if declared else None


def _item_bytes(name: str) -> list[int]:
    """Return the bytes per number of a storage class; nothing for a function."""
    if name in _FUNCTIONS:
        return []
    module, _, cls = name.partition(" ")
    if module not in ("torch", "torch.storage") or cls not in _STORAGES:
        raise pickle.UnpicklingError(f"a tensor needs no {name}")
    return [_STORAGES[cls]]


def _num_items(before: list[tuple[str, object]], *, is_older: bool) -> int:
    """Return the number of items in the tuple that identifies a storage.

    The tuple is ("storage", class, key, device, number), in the older container with a final None.
    """
    end = ["NONE", "TUPLE"] if is_older else ["TUPLE"]
    size = before[-1 - len(end)] if len(before) > len(end) else ("", None)
    is_tuple = [name for name, _ in before[-len(end) :]] == end
    if not is_tuple or size[0] not in _INTEGERS:
        raise pickle.UnpicklingError("a storage without a size")
    number = size[1]
    if not isinstance(number, int) or number < 0:
        raise pickle.UnpicklingError("a storage of no possible size")
    return number
