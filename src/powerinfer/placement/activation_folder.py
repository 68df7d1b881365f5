"""PowerInfer's `activation` folder: neuron counts, one file of `torch.save` per layer.

PowerInfer's own tool sorts the files as text, so for a model with more than ten layers it takes
those of other layers from layer 2 on; here they are sorted as numbers.

torch reads the files with `weights_only`, so nothing in them is executed. But it allocates what a
pickle requests: ``bytearray(1 << 40)``, or a storage that is larger than the file. Hence
`_declared_bytes` reads a pickle first, without executing it.
"""

import io
import os
import pickle
import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from powerinfer._extras import how_to_install
from powerinfer._files import read_small_file
from powerinfer.errors import PlacementError
from powerinfer.placement.activation_record import (
    ACTIVATION,
    ActivationProfile,
    record_path,
)
from powerinfer.placement.problem import ActivationStats

__all__ = [
    "FOLDER",
    "find_activation_folder",
    "has_counts",
    "read_activation_file",
    "read_activation_folder",
    "read_profile",
]


FOLDER = "activation"
"""Name of the folder next to a model."""
_FILE = re.compile(r"activation_(0|[1-9][0-9]{0,5})\.pt")
# A vector may be a row of a larger tensor, which is then stored whole.
_LARGEST_BYTES = 64 << 20
# Everything in a file except its numbers; torch writes about a kilobyte.
_MOST_OVERHEAD = 64 << 10
# Members of an archive; torch writes about seven. Each takes memory before it is checked.
_MOST_ENTRIES = 1000
_ENTRY_MARK = b"PK\x01\x02"
_ARCHIVE_MAGIC = b"PK\x03\x04"
_ITEM_BYTES = 8
# Magic number, protocol, system, tensor, names of storages; the numbers follow.
_PICKLES_OF_OLDER = 5
# Bytes per number of the storage classes that `torch.save` names; the untyped one counts bytes.
_BYTES_OF_STORAGES = {
    8: ("Double", "Long"),
    4: ("Float", "Int"),
    2: ("Half", "BFloat16", "Short"),
    1: ("Char", "Byte", "Bool", "Untyped"),
}
_STORAGES = {
    f"{module} {kind}Storage": size
    for size, kinds in _BYTES_OF_STORAGES.items()
    for kind in kinds
    for module in ("torch", "torch.storage")
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


def find_activation_folder(model_path: Path) -> Path | None:
    """Find the folder next to a model, where published models have it."""
    folder = model_path.parent / FOLDER
    return folder if has_counts(folder) else None


def has_counts(folder: Path) -> bool:
    """Return whether a folder has any file of counts."""
    try:
        return any(_FILE.fullmatch(path.name) for path in folder.iterdir())
    except OSError:
        return False


def read_activation_folder(
    folder: Path,
    *,
    num_layers: int,
    num_neurons: int,
    identity: str | None = None,
    activation: str | None = None,
) -> ActivationStats:
    """Read `activation_0.pt`, `activation_1.pt`, ...

    With an `activation.json`, frequencies are exact. Otherwise the files hold frequencies or counts
    over an unknown number of tokens: if nothing is above 1 they are taken as frequencies, else all
    are divided by the largest of all layers, as if that neuron always fired. The order of neurons
    is right in any case.

    Args:
        identity: identity of the model, to mention that another one was counted: a folder serves
            all files of a model next to it.
        activation: activation of the model, to refuse counts of another one; None for any.

    Raises:
        PlacementError: torch is missing, or a file is missing, superfluous or damaged, has another
            number of neurons, or holds numbers that are not counts; names the file.
    """
    profile = read_profile(folder, num_layers=num_layers, num_neurons=num_neurons)
    if profile is not None:
        record = profile.record
        if activation not in (None, record.counted.activation):
            raise PlacementError(
                f"{record_path(folder)}: was counted with activation {record.counted.activation}, "
                f"the model runs {activation}; run `powerinfer profile` again"
            )
        is_of_other = identity not in (None, record.counted.model_identity)
        how = f"counted on {record.text_names}{' with another model file' * is_of_other}"
        frequency = profile.frequency.astype(np.float32)
        return ActivationStats(frequency, f"{folder} ({how})", record.num_tokens)
    counts = _all_counts(folder, num_layers, num_neurons)
    largest = float(counts.max())
    if not largest:
        raise PlacementError(f"{folder}: all counts in these files are 0; remove the folder")
    frequency = (counts if largest <= 1 else counts / largest).astype(np.float32)
    return ActivationStats(frequency, source=f"{folder}", num_tokens=0)


def read_profile(folder: Path, *, num_layers: int, num_neurons: int) -> ActivationProfile | None:
    """Read a folder with an `activation.json`; None without one.

    Raises:
        PlacementError: as `read_activation_folder`, or the counts contradict `activation.json`.
    """
    path = record_path(folder)
    if not os.path.lexists(path):
        return None
    record = ACTIVATION.read(path)
    if (len(record.fired), record.num_neurons) != (num_layers, num_neurons):
        raise PlacementError(
            f"{path}: was made for a model of {len(record.fired)} layers of {record.num_neurons} "
            f"neurons, this one has {num_layers} of {num_neurons}; remove the folder"
        )
    counts = _all_counts(folder, num_layers, num_neurons)
    for number, layer in enumerate(counts):
        is_whole = bool((layer == np.floor(layer)).all())
        if not is_whole or layer.max() > record.num_tokens or layer.sum() != record.fired[number]:
            raise PlacementError(
                f"{folder / f'activation_{number}.pt'}: counts contradict activation.json in the "
                "same folder; run `powerinfer profile` again, or restore both from the same place"
            )
    return ActivationProfile(record, counts.astype(np.int64))


def _all_counts(folder: Path, num_layers: int, num_neurons: int) -> npt.NDArray[np.float64]:
    """Read the counts of all layers, f64[num_layers, num_neurons]."""
    try:
        matches = [_FILE.fullmatch(path.name) for path in folder.iterdir()]
    except OSError as error:
        raise PlacementError(
            f"{folder}: cannot list the folder: {error.strerror or error}"
        ) from None
    # The first number that either files or layers lack comes first.
    odd = {int(match[1]) for match in matches if match} ^ set(range(num_layers))
    if odd:
        first = min(odd)
        problem = f"activation_{first}.pt is missing"
        if first >= num_layers:
            problem = f"there is an activation_{first}.pt"
        raise PlacementError(
            f"{folder}: the model has {num_layers} layers, one file each, but {problem}; "
            "restore the model's own files, or remove the folder"
        )
    paths = [folder / f"activation_{number}.pt" for number in range(num_layers)]
    layers = [read_activation_file(path, num_neurons) for path in paths]
    for path, counts in zip(paths, layers, strict=True):
        if not np.isfinite(counts).all() or counts.min() < 0:
            raise PlacementError(
                f"{path}: counts are negative or not finite; restore the file, or remove the folder"
            )
    return np.stack(layers)


def read_activation_file(path: Path, length: int) -> npt.NDArray[np.float64]:
    """Read a tensor of `length` numbers as f64[length].

    Files are those of `torch.save(tensor, path)`, of any real numeric type, from any device.

    Raises:
        PlacementError: torch is missing, or the file is damaged or holds anything else.
    """
    data = read_small_file(path, _LARGEST_BYTES, noun="activation file", error=PlacementError)
    try:
        import torch  # noqa: F401 - to tell a missing library from a damaged file
    except (ImportError, OSError) as error:
        raise PlacementError(
            f"{path}: reading it needs torch, which cannot be imported ({error}); "
            f"{how_to_install('cuda')}"
        ) from None
    try:
        return _numbers(data, length)
    except _RefusedError as error:
        problem = str(error)
    except pickle.UnpicklingError:
        # torch's own message advises loading the file in a way that may execute its content.
        problem = (
            "torch refuses it: it is damaged, holds more than a tensor or uses an unusual pickle "
            "protocol"
        )
    except Exception as error:  # noqa: BLE001 - a damaged file may make torch raise anything
        lines = str(error).splitlines() or [type(error).__name__]
        problem = f"it cannot be read ({lines[0]:.100})"
    raise PlacementError(
        f"{path}: expected a tensor of {length} numbers, written with torch.save: {problem}"
    )


class _RefusedError(Exception):
    """Problem of a file, without torch's advice."""


def _numbers(data: bytes, length: int) -> npt.NDArray[np.float64]:
    import torch

    is_archive = data.startswith(_ARCHIVE_MAGIC)
    num_stored = _stored_bytes(data) if is_archive else _stored_bytes_of_older(data, length)
    stream = io.BytesIO(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor: object = torch.load(stream, map_location="cpu", weights_only=True)
    if not is_archive and stream.tell() != len(data):
        raise _RefusedError("it has data after its tensor")
    if not isinstance(tensor, torch.Tensor):
        raise _RefusedError(f"it holds something else ({type(tensor).__name__:.60})")
    if tuple(tensor.shape) != (length,):
        dims = " x ".join(map(str, tensor.shape[:8]))
        raise _RefusedError(f"its tensor's shape is {dims or 'a single number'}")
    # torch enlarges a storage that is too small for the shape.
    if tensor.untyped_storage().nbytes() != num_stored:
        raise _RefusedError("its tensor names a storage of another size than the file has")
    values: npt.NDArray[np.float64] = tensor.detach().to(torch.float64).numpy().copy()
    return values


def _stored_bytes_of_older(data: bytes, length: int) -> int:
    """Return the size of the only storage in the container of torch before version 1.6."""
    if len(data) > _ITEM_BYTES * length + _MOST_OVERHEAD:
        raise _RefusedError(f"it is not an archive, and too large for {length} numbers")
    stream = io.BytesIO(data)
    declared = [_declared_bytes(stream, ["NONE", "TUPLE"]) for _ in range(_PICKLES_OF_OLDER)]
    sizes = [size for size in declared if size is not None]
    if len(sizes) != 1 or sizes[0] > len(data):
        raise _RefusedError("it names a storage that is not in the file")
    return sizes[0]


def _stored_bytes(data: bytes) -> int:
    """Return the size of the only storage in an archive; its directory and pickle must agree."""
    if data.count(_ENTRY_MARK) > _MOST_ENTRIES:
        raise _RefusedError(f"the archive has more than {_MOST_ENTRIES} entries")
    archive = zipfile.ZipFile(io.BytesIO(data))
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise _RefusedError("the archive is compressed, as torch.save never does")
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    storages = [entry.file_size for entry in entries if "/data/" in entry.filename]
    if len(pickles) != 1 or len(storages) != 1:
        raise _RefusedError(
            f"the archive has {len(pickles)} files data.pkl and {len(storages)} storages, expected "
            "one of each"
        )
    if len(data) - storages[0] > _MOST_OVERHEAD:
        raise _RefusedError(
            f"the archive has more than {_MOST_OVERHEAD >> 10} KiB besides its numbers"
        )
    # torch takes the size from the pickle, and would read beyond the end.
    if _declared_bytes(io.BytesIO(archive.read(pickles[0])), ["TUPLE"]) != storages[0]:
        raise _RefusedError("its tensor names a storage of another size than the archive has")
    return storages[0]


def _declared_bytes(stream: IO[bytes], end: list[str]) -> int | None:
    """Return the size in bytes of the storage that a pickle refers to, or None.

    A storage is named by the tuple ("storage", class, key, device, number of items), in the older
    container with a final None.

    Args:
        stream: at the beginning of the pickle; afterwards at its end.
        end: operations between the number of items and the reference to the storage.

    Raises:
        pickle.UnpicklingError: it contains operations that `torch.save` of a tensor does not write.
        ValueError: it is damaged.
    """
    found = [(operation.name, value) for operation, value, _ in pickletools.genops(stream)]
    found = [(name, value) for name, value in found if name not in _MEMO]
    names = [name for name, _ in found]
    used = [str(value) for name, value in found if name == "GLOBAL"]
    classes = [name for name in used if name in _STORAGES]
    is_usual = _REFUSED.isdisjoint(names) and _FUNCTIONS.issuperset(set(used) - set(classes))
    if is_usual and names.count("BINPERSID") == len(classes) <= 1:
        if not classes:
            return None
        place = names.index("BINPERSID")
        size, *rest = found[max(0, place - 1 - len(end)) : place] or [("", None)]
        number = size[1] if size[0] in _INTEGERS else None
        if [name for name, _ in rest] == end and isinstance(number, int) and number >= 0:
            return number * _STORAGES[classes[0]]
    raise pickle.UnpicklingError("something else than a tensor")
