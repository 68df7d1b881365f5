"""Writing a trained model as a checkpoint that appears whole or not at all."""

import json
from pathlib import Path

import torch
from torch import Tensor

from powerinfer._files import write_atomically
from powerinfer._replacing import make_folder_of, replacing
from powerinfer.errors import CheckpointError, NumericsError
from powerinfer.train.sparsify.model import SparseModel
from powerinfer.train.sparsify.source import BAMBOO

__all__ = ["TOKENIZER_FILES", "save", "write_tensors"]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Files of a checkpoint that are copied as they are."""

_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_STEP = 1 << 22


def save(model: SparseModel, tokenizer: Path | None, folder: Path) -> None:
    """Write a checkpoint in the model's `dtype`; its `config.json` comes last and makes it one.

    With dReLU it is of type `bamboo`, so that no reader runs it with another activation. The
    tokenizer files of the folder `tokenizer` are copied. Files in `folder` are replaced.
    """
    make_folder_of(folder / "config.json", error=CheckpointError)
    write_tensors(folder / "model.safetensors", _tensors(model))
    for name in TOKENIZER_FILES:
        if tokenizer is not None and (tokenizer / name).is_file():
            content = (tokenizer / name).read_bytes()
            write_atomically(folder / name, content, error=CheckpointError)
    data = json.dumps(_config(model), indent=2).encode() + b"\n"
    write_atomically(folder / "config.json", data, error=CheckpointError)


def _config(model: SparseModel) -> dict[str, object]:
    """The source's configuration with the new values; foreign keys stay."""
    kind, config = model.source.kind, dict(model.source.values)
    # Names code that is not copied.
    config.pop("auto_map", None)
    is_drelu = model.activation == "drelu"
    config["model_type"] = BAMBOO if is_drelu else kind.lower()
    config["architectures"] = [f"{'Bamboo' if is_drelu else kind}ForCausalLM"]
    config["hidden_act"] = "relu" if is_drelu else model.activation
    if kind == "Mistral":
        config["sliding_window"] = model.network.config.sliding_window
    elif is_drelu:
        # Llama's own code does not look at it.
        config.pop("sliding_window", None)
    key = "torch_dtype" if "torch_dtype" in config and "dtype" not in config else "dtype"
    config[key] = str(model.dtype).removeprefix("torch.")
    return config


def _tensors(model: SparseModel) -> dict[str, Tensor]:
    """All tensors by name, each of them once."""
    found: dict[str, Tensor] = dict(model.network.state_dict())
    if model.network.config.tie_word_embeddings:
        found.pop("lm_head.weight", None)
    return {name: tensor.to(model.dtype) for name, tensor in found.items()}


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file: length of the header, header, data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise NumericsError(f"{path}: tensor {name} is not finite as {tensor.dtype}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entry = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = entry | {"data_offsets": [begin, end]}
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    with replacing(path, error=CheckpointError) as file:
        file.write(len(packed).to_bytes(8, "little") + packed)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous().flatten()
            for first in range(0, len(flat), _STEP):
                file.write(flat[first : first + _STEP].view(torch.uint8).numpy().data)
