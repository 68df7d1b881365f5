"""Memory that a model takes: weights, keys and values, states."""

from powerinfer.gguf import GGUFFile
from powerinfer.kvcache import BLOCK_SIZE
from powerinfer.kvcache.state_slots import num_slots_for
from powerinfer.models import ModelConfig, ModelFile, default_context, kv_bytes_per_position
from powerinfer.ops.protocol import KVType
from powerinfer.options.options import EngineOptions

__all__ = ["kv_bytes", "needed_bytes", "num_slots", "weight_bytes"]


def weight_bytes(file: GGUFFile) -> int:
    """Return the size of all weights."""
    return sum(tensor.data.nbytes for tensor in file.tensors.values())


def num_slots(config: ModelConfig, options: EngineOptions, context_length: int) -> int:
    """Slots of state for all texts, and for those that are kept for later ones."""
    if not config.state_bytes:
        return 0
    num_kept = 0
    if options.reuse_prefix or options.kv_tokens:
        num_positions = options.kv_tokens or context_length
        # More than two for each block would outlive their keys and values.
        num_kept = min(
            (options.state_cache << 20) // config.state_bytes, 2 * num_positions // BLOCK_SIZE
        )
    return num_slots_for(options.parallel, num_kept)


def needed_bytes(opened: ModelFile, options: EngineOptions) -> int:
    """Estimate what a model adds to the memory of a process: weights, KV cache and states."""
    config = opened.config
    context_length = options.context_length or default_context(config)
    return (
        weight_bytes(opened.file)
        + kv_bytes(config, options, context_length)
        + num_slots(config, options, context_length) * config.state_bytes
    )


def kv_bytes(config: ModelConfig, options: EngineOptions, context_length: int) -> int:
    """Return the size of the keys and values of all texts."""
    num_positions = options.kv_tokens or context_length
    return num_positions * kv_bytes_per_position(config, KVType(options.kv_type))
