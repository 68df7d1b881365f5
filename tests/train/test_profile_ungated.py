"""`profile` on ungated ReLU^2 blocks."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from command_line import run_json
from tiny_models import TINY_MODELS, write_model
from ungated_experts import UNGATED_EXPERTS, let_nemotron_have_experts


@pytest.mark.parametrize("name", ["dense", "alone", "plain", "latent"])
def test_the_share_of_zeros_is_counted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_nemotron_have_experts(monkeypatch)
    dense = {"dense": TINY_MODELS["nemotron"], "alone": TINY_MODELS["nemotron_h"]}
    recipe = dense[name] if name in dense else UNGATED_EXPERTS[name]
    path, text = write_model(tmp_path / "m.gguf", recipe), tmp_path / "text.txt"
    text.write_text("once upon a time there was a tiny model that had no gates " * 12)
    found = run_json("profile", "-m", path, "-f", text, "-o", tmp_path / "counts", "-c", "64")
    assert found["activation"] == "relu2"
    # The kernels count what they skip by themselves.
    scored = run_json("perplexity", "-m", path, "-f", text, "-c", "64")
    assert 0.3 < scored["active_share"] < 0.7
    assert found["active_share"] == pytest.approx(scored["active_share"], rel=0.02)
