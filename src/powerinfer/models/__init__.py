"""Models: configuration and weights from files, and a layer function per architecture.

Sampling, tokenization and scheduling belong to the engine. Models compute only through the
operations they are given.
"""

from powerinfer.models.architecture import Architecture, architecture_of, get_architecture
from powerinfer.models.config import ModelConfig, read_config
from powerinfer.models.load import default_context, load_model, prepare_model
from powerinfer.models.model import LayerShares, Model, kv_bytes_per_position, sequence_bytes
from powerinfer.models.model_file import ModelFile
from powerinfer.models.nonfinite import find_nonfinite_layer
from powerinfer.models.sparsity import InputStatistics, layer_source, uniform, with_predictors
from powerinfer.models.weights import LayerWeights
from powerinfer.values import Batch

__all__ = [
    "Architecture",
    "Batch",
    "InputStatistics",
    "LayerShares",
    "LayerWeights",
    "Model",
    "ModelConfig",
    "ModelFile",
    "architecture_of",
    "default_context",
    "find_nonfinite_layer",
    "get_architecture",
    "kv_bytes_per_position",
    "layer_source",
    "load_model",
    "prepare_model",
    "read_config",
    "sequence_bytes",
    "uniform",
    "with_predictors",
]
