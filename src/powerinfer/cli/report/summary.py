"""Facts about a model file for `powerinfer inspect`, as plain values that go into JSON.

Everything comes from the header and the tensor table; weights are not read. A file that cannot be
run (another architecture, a vocabulary alone) is summarized too and says why.
"""

import math
import re
from typing import TypedDict, cast

import numpy as np

from powerinfer import quant
from powerinfer.cli.report.ffn_storage import ExpertsReport, experts_report, ffn_storage
from powerinfer.errors import PowerInferError
from powerinfer.gguf import GGUFFile, Tensor, keys, model_identity
from powerinfer.models.architecture import architecture_of
from powerinfer.models.config import ModelConfig, read_config
from powerinfer.values import JSON

__all__ = ["Summary", "summarize", "tensor_rows"]

# Longer arrays (vocabularies) are summarized by type and length.
_LONGEST_ARRAY = 16
_PREDICTOR = re.compile(r"blk\.\d+\.fc1(_exps)?\.weight")


class FFNSummary(TypedDict):
    """The FFNs of a model; it may have none."""

    activation: str | None
    is_sparse: bool | None
    is_down_transposed: bool | None
    bytes: int
    plain_down_bytes: int
    plain_down_formats: list[str]
    layout: JSON
    predictor_layers: int
    predictor_ranks: list[int] | None
    sparse_threshold: JSON


class FormatSummary(TypedDict):
    """The tensors of one format."""

    tensors: int
    parameters: int
    bytes: int
    is_supported: bool


class Summary(TypedDict):
    """Facts that `inspect` prints; `problem` is the reason why the file cannot be run."""

    files: list[str]
    container: str
    version: int
    bytes: int
    identity: str
    architecture: JSON
    name: JSON
    problem: str | None
    parameters: int
    bits_per_weight: float | None
    sizes: dict[str, JSON] | None
    mtp_blocks: int
    ffn: FFNSummary
    experts: ExpertsReport | None
    formats: dict[str, FormatSummary]
    tokenizer: dict[str, JSON] | None
    metadata: dict[str, JSON]


def summarize(file: GGUFFile) -> Summary:
    """Collect the facts that `inspect` prints, as JSON values."""
    tensors = list(file.tensors.values())
    parameters = sum(tensor.num_elements for tensor in tensors)
    tensor_bytes = sum(tensor.num_bytes for tensor in tensors)
    config, problem = _config(file)
    return {
        "files": [str(path) for path in file.paths],
        "container": file.magic,
        "version": file.version,
        "bytes": file.num_bytes,
        "identity": model_identity(file),
        "architecture": _plain(file.metadata.get(keys.ARCHITECTURE)),
        "name": _plain(file.metadata.get(keys.NAME)),
        "problem": problem,
        "parameters": parameters,
        "bits_per_weight": 8 * tensor_bytes / parameters if parameters else None,
        "sizes": _sizes(config) if config else None,
        "mtp_blocks": config.num_nextn_layers if config else 0,
        "ffn": _ffn(file, config),
        "experts": experts_report(file, config) if config else None,
        "formats": _formats(tensors),
        "tokenizer": _tokenizer(file),
        "metadata": {key: _value_or_summary(file, key) for key in file.metadata},
    }


def tensor_rows(file: GGUFFile) -> list[dict[str, object]]:
    """One row per tensor; its shape is outermost first."""
    return [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "format": tensor.format,
            "bytes": tensor.num_bytes,
        }
        for tensor in file.tensors.values()
    ]


def _config(file: GGUFFile) -> tuple[ModelConfig | None, str | None]:
    try:
        config = read_config(file, architecture_of(file))
        problem = None
    except PowerInferError as error:
        config, problem = None, str(error)
    return config, file.missing_weights or problem


def _sizes(config: ModelConfig) -> dict[str, JSON]:
    names = (
        *("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"),
        *("head_dim", "vocab_size", "context_length", "sliding_window"),
    )
    found = {name: getattr(config, name) for name in names}
    if config.layers_differ:
        found |= _sizes_by_layer(config)
    if config.state_mixers:
        found |= {"state_layers": len(config.state_mixers), "state_bytes": config.state_bytes}
    return found


def _sizes_by_layer(config: ModelConfig) -> dict[str, JSON]:
    """Sizes that differ by layer, each as a list; and what only such models have."""
    layers = config.attention
    found: dict[str, JSON] = {
        "num_kv_heads": [layer.num_kv_heads for layer in layers],
        "head_dim": [layer.head_dim for layer in layers],
    }
    if config.layer_sizes:
        found["intermediate_size"] = [size for size, _ in config.layer_sizes]
    shared = sum(layer.kv_layer is not None for layer in layers)
    return found | {"shared_kv_layers": shared, "per_layer_size": config.per_layer_size}


def _ffn(file: GGUFFile, config: ModelConfig | None) -> FFNSummary:
    storage = ffn_storage(file)
    found = [tensor for name, tensor in file.tensors.items() if _PREDICTOR.fullmatch(name)]
    ranks = [tensor.shape[-2] for tensor in found if len(tensor.shape) > 1]
    activation = config.activation if config and config.has_ffns else None
    return {
        "activation": str(activation) if activation else None,
        "is_sparse": activation.is_sparse if activation else None,
        "is_down_transposed": storage.is_down_transposed,
        "bytes": storage.bytes,
        "plain_down_bytes": storage.plain_down_bytes,
        "plain_down_formats": list(storage.plain_down_formats),
        "layout": _plain(file.metadata.get(keys.LAYOUT)),
        "predictor_layers": len(ranks),
        "predictor_ranks": [min(ranks), max(ranks)] if ranks else None,
        "sparse_threshold": _plain(file.metadata.get(keys.SPARSE_THRESHOLD)),
    }


def _formats(tensors: list[Tensor]) -> dict[str, FormatSummary]:
    found: dict[str, FormatSummary] = {}
    for tensor in tensors:
        is_supported = tensor.format in quant.format_names()
        empty: FormatSummary = {
            "tensors": 0,
            "parameters": 0,
            "bytes": 0,
            "is_supported": is_supported,
        }
        row = found.setdefault(tensor.format, empty)
        row["tensors"] += 1
        row["parameters"] += tensor.num_elements
        row["bytes"] += tensor.num_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def _tokenizer(file: GGUFFile) -> dict[str, JSON] | None:
    model = file.metadata.get(keys.TOKENIZER_MODEL)
    if model is None:
        return None
    tokens, merges = file.metadata.get(keys.TOKENS), file.metadata.get(keys.MERGES)
    return {
        "model": _plain(model),
        "pre": _plain(file.metadata.get(keys.TOKENIZER_PRE)),
        "tokens": len(tokens) if isinstance(tokens, list) else None,
        "merges": len(merges) if isinstance(merges, list) else None,
        "bos_token_id": _plain(file.metadata.get(keys.BOS_TOKEN_ID)),
        "eos_token_id": _plain(file.metadata.get(keys.EOS_TOKEN_ID)),
        "has_chat_template": keys.CHAT_TEMPLATE in file.metadata,
    }


def _value_or_summary(file: GGUFFile, key: str) -> JSON:
    value = file.metadata[key]
    if isinstance(value, list | np.ndarray) and len(value) > _LONGEST_ARRAY:
        return {"type": file.types[key].name.lower(), "length": len(value)}
    return _plain(value)


def _plain(value: object) -> JSON:
    """Turn a metadata value into a JSON value; JSON has neither NaN nor infinity."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return cast("JSON", value)
