"""Names in checkpoints: prefixes that some leave out, tensors that say nothing, cache folders."""

from pathlib import Path

import numpy as np
import pytest

from checkpoint_files import write_checkpoint
from converted_cases import MODEL_TYPES
from powerinfer.convert.convert import convert
from powerinfer.convert.naming import Names, Place
from powerinfer.gguf import open_gguf
from powerinfer.models import get_architecture
from powerinfer.models.architecture import architecture_names
from transformers_cases import CASES
from transformers_weights import transformers_state

pytestmark = pytest.mark.usefixtures("without_tokenizers")


@pytest.mark.parametrize("architecture", architecture_names())
def test_names_of_every_family_lead_back(architecture: str) -> None:
    family = get_architecture(architecture)
    names = Names(family)
    for ours, theirs in family.hugging_face_names.items():
        for name in (theirs,) if isinstance(theirs, str) else theirs:
            expert = 11 if "{expert}" in name else None
            filled = name.replace("{layer}", "7").replace("{expert}", "11")
            place = Place(ours.replace("{layer}", "7"), "weight", expert)
            assert names.place(f"{filled}.weight") == place
            assert names.place(f"{filled}.bias") == Place(place.name, "bias", expert)
            assert names.place(f"{filled}.scale") is None
    assert names.place("model.layers.07.input_layernorm.weight") is None
    assert names.place("") is None


def test_model_types_are_of_one_family_each() -> None:
    """Or of two that their rules tell apart."""
    families: dict[str, list[str]] = {}
    for name in architecture_names():
        for model_type in get_architecture(name).checkpoint.model_types:
            families.setdefault(model_type, []).append(name)
    shared = {kind: names for kind, names in families.items() if len(names) > 1}
    assert shared == {"nemotron_h": ["nemotron_h", "nemotron_h_moe"]}
    assert set(MODEL_TYPES.values()) <= set(families)


@pytest.mark.parametrize(("name", "prefix"), [("opt", "model."), ("falcon-7b", "transformer.")])
def test_names_of_the_model_inside(name: str, prefix: str, tmp_path: Path) -> None:
    """As the first OPT checkpoints have them."""
    case = CASES[name]
    config = case.arguments | {"model_type": case.kind.lower()}
    state = transformers_state(case)
    short = {each.removeprefix(prefix): values for each, values in state.items()}
    assert set(short) != set(state)
    files = []
    for kind, tensors in (("long", state), ("short", short)):
        folder = write_checkpoint(tmp_path / kind / "same", config, tensors)
        files.append(convert(folder, tmp_path / f"{kind}.gguf").path.read_bytes())
    assert files[0] == files[1]


def test_what_old_programs_saved_too(tmp_path: Path) -> None:
    case = CASES["llama-gqa"]
    state = dict(transformers_state(case))
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    config = case.arguments | {"model_type": "llama"}
    folder = write_checkpoint(tmp_path / "hf", config, state)
    file = open_gguf(convert(folder, tmp_path / "m.gguf").path)
    assert not any("rope" in name for name in file.tensors)


def test_a_snapshot_of_a_cache_is_named_after_its_repository(tmp_path: Path) -> None:
    case = CASES["llama-gqa"]
    folder = tmp_path / "models--some--Tiny-Llama" / "snapshots" / ("0f" * 20)
    write_checkpoint(folder, case.arguments | {"model_type": "llama"}, transformers_state(case))
    file = open_gguf(convert(folder, tmp_path / "m.gguf").path)
    assert file.get_str("general.name") == "Tiny-Llama"
