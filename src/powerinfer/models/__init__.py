"""Models: configuration and weights from a file, the KV cache, and one `forward` per architecture.

Nothing here samples, tokenizes or schedules (that is the engine), and nothing computes except
through the operations it is given.
"""

from powerinfer.models.activation import parse_activation
from powerinfer.models.architecture import Architecture, architecture_names, get_architecture
from powerinfer.models.config import ModelConfig, read_config
from powerinfer.models.kv_cache import BLOCK_SIZE, KVCache, kv_bytes_per_position
from powerinfer.models.model import DEFAULT_CONTEXT_LENGTH, SPARSITY_MODES, Model, load_model
from powerinfer.models.nonfinite import find_nonfinite_layer
from powerinfer.models.rope import RopeConfig, RopeScaling, build_rope_table
from powerinfer.models.weights import LayerWeights, ModelWeights, Predictor
from powerinfer.values import Batch

__all__ = [
    "BLOCK_SIZE",
    "DEFAULT_CONTEXT_LENGTH",
    "SPARSITY_MODES",
    "Architecture",
    "Batch",
    "KVCache",
    "LayerWeights",
    "Model",
    "ModelConfig",
    "ModelWeights",
    "Predictor",
    "RopeConfig",
    "RopeScaling",
    "architecture_names",
    "build_rope_table",
    "find_nonfinite_layer",
    "get_architecture",
    "kv_bytes_per_position",
    "load_model",
    "parse_activation",
    "read_config",
]
