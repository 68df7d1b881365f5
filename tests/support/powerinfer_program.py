"""The embedded model with seeded predictors, for what the original PowerInfer makes of it.

`scripts/make-goldens-powerinfer` runs the original, `golden/test_powerinfer_program.py` the engine.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import powerinfer
from checkpoint_files import write_checkpoint
from powerinfer.convert.naming import Names
from powerinfer.convert.powerinfer.pack_predictors import pack_with_predictors
from powerinfer.convert.quantize.file_types import find_file_type
from powerinfer.convert.quantize.plan import QuantizeOptions
from powerinfer.convert.quantize.quantize import quantize
from powerinfer.gguf import GGUFFile, Tensor, keys, open_gguf
from powerinfer.models import get_architecture
from powerinfer.store.default_model import find_model
from predictor_folders import save_predictor, write_threshold
from tiny_models import Stream

__all__ = [
    "GOLDEN",
    "NUM_TOKENS",
    "PROMPTS",
    "SETTINGS",
    "TEXT",
    "WINDOW",
    "Setting",
    "digest",
    "save_checkpoint",
    "write_sparse_model",
]

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "powerinfer" / "program.json"

TEXT = Path(powerinfer.__file__).resolve().parent / "data" / "calibration.txt"
"""Whose perplexity is measured."""
WINDOW = 256

PROMPTS = ("Once upon a time", "Tom and his dog went to the park.")
NUM_TOKENS = 60


@dataclass(frozen=True)
class Setting:
    """How the embedded model is packed.

    Attributes:
        threshold: of the scores; None leaves it out, which means 0.
        file_type: of the weights.
        has_texts: texts are compared too. They are not where the threshold lies amid the scores of
            seeded predictors, since one neuron that rounding moves across it changes a word, nor
            beside Q4_0, where the original rounds the values of neurons to 8 bits.
    """

    threshold: float | None
    file_type: str = "F16"
    has_texts: bool = False


SETTINGS = {
    "all": Setting(-1e30, has_texts=True),
    "most": Setting(-0.5, has_texts=True),
    "half": Setting(None),
    "q4_0": Setting(-0.5, "Q4_0"),
}

_HIDDEN, _NEURONS, _LAYERS, _HEAD_DIM = 256, 1024, 6, 32


def write_sparse_model(folder: Path, name: str) -> Path:
    """Pack the embedded model with seeded predictors; needs torch.

    Args:
        folder: to write into.
        name: of the setting.
    """
    setting = SETTINGS[name]
    predictors = folder / "predictors"
    predictors.mkdir(parents=True)
    for layer in range(_LAYERS):
        rank = 32 * (1 + layer % 3)
        stream = Stream(layer)
        weights = {
            "fc1.weight": stream.numbers((rank, _HIDDEN), _HIDDEN**-0.5),
            "fc2.weight": stream.numbers((_NEURONS, rank), rank**-0.5),
        }
        save_predictor(predictors, layer, weights)
    write_threshold(predictors, setting.threshold)
    output = folder / f"{name}.gguf"
    pack_with_predictors(_source(folder, setting.file_type), predictors, output)
    return output


def _source(folder: Path, file_type: str) -> GGUFFile:
    """The embedded model in a type."""
    file = open_gguf(find_model(None))
    if file_type == "F16":
        return file
    path = folder / f"{file_type}.gguf"
    quantize(file, path, QuantizeOptions(find_file_type(file_type), threads=1))
    return open_gguf(path)


def save_checkpoint(folder: Path) -> Path:
    """The embedded model as a checkpoint in F16, with a vocabulary as the original reads it."""
    file = open_gguf(find_model(None))
    names = Names(get_architecture("bamboo"))
    state = {
        names.in_checkpoint(tensor.name): _as_published(tensor) for tensor in file.tensors.values()
    }
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = {
        "model_type": "bamboo",
        "hidden_act": "relu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _NEURONS,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    write_checkpoint(folder, config, state)
    tokens, merges = file.get_strings(keys.TOKENS), file.get_strings(keys.MERGES)
    (folder / "vocab.json").write_text(json.dumps({text: i for i, text in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder


def digest(file: GGUFFile) -> str:
    """SHA-256 of names, shapes, formats and numbers of all tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(file.tensors.items()):
        found.update(f"{name} {tensor.shape} {tensor.format}\n".encode())
        found.update(tensor.data.tobytes())
    return found.hexdigest()


def _as_published(tensor: Tensor) -> npt.NDArray[np.generic]:
    """Rows of q and k by halves of heads, neurons as columns of down."""
    values = tensor.numbers()
    if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
        pairs = values.reshape(-1, _HEAD_DIM // 2, 2, _HIDDEN)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    return np.ascontiguousarray(values.T) if ".ffn_down_t." in tensor.name else values
