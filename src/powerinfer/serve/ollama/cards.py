"""Descriptions of models as Ollama has them, read from their files, loaded or not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from powerinfer.convert.quantize.file_types import FILE_TYPES
from powerinfer.errors import PowerInferError
from powerinfer.gguf import GGUFFile, MetadataValue, keys, model_identity, open_gguf
from powerinfer.serve.chat.reasoning import reasoning_marks
from powerinfer.serve.model_source import FileStamp, stamp_of
from powerinfer.serve.pooled_model import PooledModel
from powerinfer.serve.tool_formats import find_format
from powerinfer.values import JSON

__all__ = ["TAG", "Card", "card_of", "model_path", "shown_name"]

TAG = ":latest"
_MOST_CARDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Facts of a model's file; those of a file that cannot be read are empty.

    Attributes:
        info: metadata; null stands for arrays.
        digest: hash of the file's contents, 64 hexadecimal digits.
        num_bytes: size of the file, all parts together.
    """

    digest: str = ""
    num_bytes: int = 0
    num_parameters: int = 0
    quantization: str = "unknown"
    template: str = ""
    info: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """Architecture of the model."""
        return str(self.info.get(keys.ARCHITECTURE, ""))

    def details(self) -> dict[str, object]:
        """Build Ollama's object `details`."""
        return {
            "parent_model": "",
            "format": "gguf",
            "family": self.family,
            "families": [self.family] if self.family else [],
            "parameter_size": _size(self.num_parameters),
            "quantization_level": self.quantization,
        }

    def capabilities(self, *, is_story_model: bool) -> list[str]:
        """List what the model can do, in Ollama's words."""
        found = ["completion"]
        if is_story_model or not self.template:
            return found
        is_harmony = "<|channel|>" in self.template
        if is_harmony or find_format(self.template).is_of_template:
            found.append("tools")
        if is_harmony or reasoning_marks(self.template) is not None:
            found.append("thinking")
        return found


def shown_name(model: PooledModel) -> str:
    """Name of a model with a tag, which clients expect."""
    return model.name if ":" in model.name else model.name + TAG


def model_path(model: PooledModel) -> Path | None:
    """File of a model; None in tests with a fake engine."""
    if model.source is not None:
        return model.source.path
    loaded = None if model.resident is None else model.resident.context.model.loaded
    return getattr(loaded, "path", None)


def card_of(model: PooledModel) -> Card:
    """Read the card of a model, which is slow if its file has changed."""
    path = model_path(model)
    stamp = None if path is None else stamp_of(path)
    return Card() if path is None or stamp is None else _read(path, stamp)


@lru_cache(_MOST_CARDS)
def _read(path: Path, _stamp: FileStamp) -> Card:
    try:
        file = open_gguf(path)
    except PowerInferError:
        return Card()
    return Card(
        digest=model_identity(file),
        num_bytes=file.num_bytes,
        num_parameters=sum(tensor.num_elements for tensor in file.tensors.values()),
        quantization=_quantization(file),
        template=str(_as_json(file.metadata.get(keys.CHAT_TEMPLATE, ""))),
        info=_info(file),
    )


def _info(file: GGUFFile) -> dict[str, JSON]:
    shown: dict[str, JSON] = {}
    for key, value in file.metadata.items():
        if key not in (keys.CHAT_TEMPLATE, keys.CALIBRATION):
            shown[key] = _as_json(value)
    return shown


def _as_json(value: MetadataValue) -> JSON:
    """Convert a value to one that JSON has; None for arrays, which are long."""
    if isinstance(value, np.ndarray | list):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if math.isfinite(value) else None


def _quantization(file: GGUFFile) -> str:
    """Name the file's type; one that quantizing does not know has the name of its main format."""
    number = file.metadata.get(keys.FILE_TYPE)
    for each in FILE_TYPES:
        if each.number == number and not isinstance(number, bool):
            return each.name
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.format] = sizes.get(tensor.format, 0) + tensor.num_bytes
    return max(sizes, key=sizes.__getitem__).upper() if sizes else "unknown"


def _size(count: int) -> str:
    """Write a number of parameters as 7.2B, 134.52M or 12.3K."""
    if count >= 10**9:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.2f}M" if count >= 10**6 else f"{count / 1e3:.1f}K"
