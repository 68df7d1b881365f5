"""The models of transformers_cases.py as checkpoints."""

import json
from pathlib import Path
from typing import Any

from checkpoint_files import bf16, write_checkpoint
from transformers_cases import Case
from transformers_weights import transformers_model, transformers_state

__all__ = ["MODEL_TYPES", "save_as_transformers", "save_without_torch"]

MODEL_TYPES = {
    "Gemma3": "gemma3_text",
    "Gemma4": "gemma4_text",
    "GptOss": "gpt_oss",
    "Lfm2Moe": "lfm2_moe",
    "NemotronH": "nemotron_h",
    "Qwen3Moe": "qwen3_moe",
    "Qwen3_5": "qwen3_5_text",
    "Qwen3_5Moe": "qwen3_5_moe_text",
}


def save_as_transformers(folder: Path, case: Case, **options: Any) -> Path:
    """What the installed version of transformers writes.

    Args:
        folder: to write into.
        case: the model.
        options: of `save_pretrained`.
    """
    model = transformers_model(case)
    model.save_pretrained(folder, **options)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | _own_config(case)))
    return folder


def save_without_torch(folder: Path, case: Case, *, is_bf16: bool = False, shards: int = 1) -> Path:
    """The same with a configuration as transformers 4 wrote it, experts merged."""
    config = case.arguments | {"model_type": MODEL_TYPES.get(case.kind, case.kind.lower())}
    state = transformers_state(case)
    tensors = {name: bf16(values) for name, values in state.items()} if is_bf16 else state
    return write_checkpoint(folder, config | _own_config(case), tensors, shards=shards)


def _own_config(case: Case) -> dict[str, Any]:
    """What transformers has no such model for."""
    if case.architecture == "bamboo":
        return {"model_type": "bamboo", "hidden_act": "relu"}
    if case.hidden_act == "drelu":
        return {"hidden_act": "drelu"}
    if case.hidden_act == "fatrelu":
        threshold = case.metadata["!powerinfer.fatrelu_threshold"]
        model = {"model_type": "sparsellama", "hidden_act": "fatrelu"}
        return model | {"hidden_act_param": threshold}
    return {}
