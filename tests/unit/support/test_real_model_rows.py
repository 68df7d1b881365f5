"""Rows of trained models: their form, and what is said of a file that is another."""

from pathlib import Path

import pytest

from powerinfer.hub.names import parse_reference
from real_model_rows import differences, examine, read_rows
from tiny_models import TINY_MODELS, write_model


def test_rows_name_models_of_the_hub() -> None:
    for row in read_rows().values():
        assert parse_reference(row["source"]).quant
        assert set(row) == {"source", "sha256", "text", "perplexity"}


@pytest.mark.slow
def test_a_model_is_compared_with_its_row(tmp_path: Path) -> None:
    recipe = TINY_MODELS["lfm2"]
    path = write_model(tmp_path / "m.gguf", recipe)
    found = examine(path, "hf:a/b:Q4_0")
    assert found["perplexity"] is not None
    unknown = {"source": "hf:a/b:Q4_0", "sha256": None, "text": None, "perplexity": None}
    assert differences(unknown, found) == []  # type: ignore[arg-type]
    assert differences(found, found) == []
    other = {**found, "sha256": "0", "text": "x", "perplexity": 1.1 * found["perplexity"]}
    assert [each.split(":")[0] for each in differences(other, found)] == [  # type: ignore[arg-type]
        *("sha256", "text", "perplexity"),
    ]
