"""A checkpoint's folder: its configuration, and its tensors from one or more files."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from powerinfer._files import read_small_file
from powerinfer.convert.checkpoint.safetensors import read_safetensors
from powerinfer.convert.checkpoint.tensor import CheckpointTensor
from powerinfer.convert.checkpoint.torch_files import read_torch_file
from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.models.checkpoints.config import CheckpointConfig

__all__ = ["Checkpoint", "open_checkpoint", "read_json"]

_LARGEST_CONFIG = 16 << 20
# Room for 100,000 tensors.
_LARGEST_INDEX = 64 << 20
_Read: TypeAlias = Callable[[Path], dict[str, CheckpointTensor]]
_KINDS: tuple[tuple[str, _Read], ...] = (
    ("model.safetensors", read_safetensors),
    ("pytorch_model.bin", read_torch_file),
)
_SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(\.[a-z]+)")


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint.

    Attributes:
        tensors: tensors by name; mapped, not read.
        index: file that lists or holds the tensors, for messages about missing ones.
    """

    folder: Path
    config: CheckpointConfig
    tensors: Mapping[str, CheckpointTensor]
    index: Path


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a folder and map all its tensors.

    Raises:
        CheckpointError: it is not a checkpoint, a file is missing or damaged, or the files
            contradict their index; the message names file and tensor.
        DeviceError: it needs torch, which is not installed.
        UnsupportedError: its weights are quantized.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected one with a config.json")
    path = folder / "config.json"
    config = CheckpointConfig(path, read_json(path, _LARGEST_CONFIG, "configuration"))
    _check_quantization(config)
    for name, read in _KINDS:
        index = folder / f"{name}.index.json"
        if index.exists():
            return Checkpoint(folder, config, _read_shards(index, read), index)
        if (folder / name).exists():
            return Checkpoint(folder, config, read(folder / name), folder / name)
        files = _shards_without_index(folder, name)
        if files:
            return Checkpoint(folder, config, _merged(files, read), folder)
    raise CheckpointError(
        f"{folder}: has neither model.safetensors nor pytorch_model.bin, nor shards of one"
    )


def read_json(path: Path, largest_bytes: int, noun: str) -> dict[str, object]:
    """Read a JSON object."""
    data = read_small_file(path, largest_bytes, noun=noun, error=CheckpointError)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not JSON: {error!s:.80}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


def _check_quantization(config: CheckpointConfig) -> None:
    """Reject quantized weights except gpt-oss's, whose format GGUF has too."""
    quantization = config.part("quantization_config")
    method = quantization.values.get("quant_method", "unnamed")
    if not quantization.values or (
        method == "mxfp4" and config.values.get("model_type") == "gpt_oss"
    ):
        return
    raise UnsupportedError(
        f"{config.path}: its weights are quantized ({method!s:.40}); convert the original "
        "checkpoint instead"
    )


def _read_shards(index: Path, read: _Read) -> dict[str, CheckpointTensor]:
    weight_map = read_json(index, _LARGEST_INDEX, "index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: expected an object weight_map, from tensors to files")
    by_file: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index}: tensor {tensor}: {file!r:.80} is not the name of a file in "
                "the same folder"
            )
        by_file.setdefault(file, []).append(tensor)
    files = [index.parent / file for file in sorted(by_file)]
    missing = [path.name for path in files if not path.exists()]
    if missing:
        raise CheckpointError(
            f"{index}: {len(missing)} of its {len(files)} files are missing: "
            f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
        )
    tensors = _merged(files, read)
    for tensor, file in weight_map.items():
        if tensor not in tensors or tensors[tensor].path.name != file:
            raise CheckpointError(f"{index.parent / file}: tensor {tensor} is missing")
    return tensors


def _shards_without_index(folder: Path, name: str) -> list[Path]:
    """Find all shards such as model-00001-of-00003.safetensors."""
    stem, _, suffix = name.rpartition(".")
    found = {
        path: match
        for path in sorted(folder.iterdir())
        if (match := _SHARD.fullmatch(path.name)) and (match[1], match[4]) == (stem, f".{suffix}")
    }
    counts = {int(match[3]) for match in found.values()}
    if found and counts != {len(found)}:
        raise CheckpointError(
            f"{folder}: has {len(found)} of {max(counts)} shards of {name}, and no index"
        )
    return list(found)


def _merged(files: list[Path], read: _Read) -> dict[str, CheckpointTensor]:
    tensors: dict[str, CheckpointTensor] = {}
    for path in files:
        for name, tensor in read(path).items():
            if name in tensors:
                raise CheckpointError(f"{path}: tensor {name} is in {tensors[name].path.name} too")
            tensors[name] = tensor
    return tensors
