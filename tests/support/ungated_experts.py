"""Ungated ReLU^2 experts beside a shared one, as in Nemotron-3, in layers that only attend.

No published family has such layers, so tests let `nemotron` have experts.
"""

from dataclasses import replace

import pytest

from powerinfer.gguf import keys
from powerinfer.models.architectures import nemotron
from powerinfer.models.experts import ExpertRules
from powerinfer.ops.operands import RouterRule
from tiny_models import TINY_MODELS, TinyModel

__all__ = ["UNGATED_EXPERTS", "let_nemotron_have_experts"]

_PLAIN = replace(
    TINY_MODELS["nemotron"],
    num_experts=6,
    num_used_experts=3,
    shared_size=40,
    has_selection_bias=True,
    metadata={
        "rope.dimension_count": 4,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
    },
)

UNGATED_EXPERTS: dict[str, TinyModel] = {
    "plain": _PLAIN,
    "transposed": replace(_PLAIN, is_down_transposed=True),
    "single": replace(_PLAIN, expert_layout="single", shared_size=0),
    "latent": replace(_PLAIN, latent_size=20, is_down_transposed=True),
    "latent-biases": replace(_PLAIN, latent_size=20, has_linear_biases=True),
}
"""Recipes by name."""


def let_nemotron_have_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the family routing rules, until the test ends."""
    rules = ExpertRules(rule=RouterRule.SIGMOID, size_key=keys.EXPERT_SIZE, has_selection_bias=True)
    monkeypatch.setattr(nemotron, "ARCHITECTURE", replace(nemotron.ARCHITECTURE, experts=rules))
