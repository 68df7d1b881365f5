"""How large a study is: model, budgets and recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from powerinfer.train.sparsify.ffn import ActivationName
from powerinfer.train.sparsify.recipe import Recipe
from recipes.stories.corpus import Source

__all__ = ["PRESETS", "VARIANTS", "Preset", "Variant"]


@dataclass(frozen=True)
class Variant:
    """One way to train the SwiGLU model on.

    Attributes:
        title: for readers.
        activation: of its FFN.
        is_penalised: with the density penalty of the preset.
        is_distilled: towards the predictions of the unchanged model, with the weight of the preset.
    """

    title: str
    activation: ActivationName
    is_penalised: bool = False
    is_distilled: bool = False


VARIANTS: Mapping[str, Variant] = {
    "swiglu": Variant("SwiGLU", "silu"),
    "drelu": Variant("dReLU", "drelu", is_penalised=True),
    "drelu-distilled": Variant("dReLU, distilled", "drelu", is_penalised=True, is_distilled=True),
    "reglu": Variant("ReGLU", "relu"),
}
"""By name, in the order in which they are trained."""


@dataclass(frozen=True)
class Preset:
    """A study.

    Attributes:
        config: the model, as a `config.json` says it.
        base: training of the SwiGLU model from random weights.
        continued: training of each variant from there, apart from its tokens, penalty and
            distillation.
        budgets: tokens of the continued runs.
        density_penalty: weight in the variants that have one.
        other_penalties: weights that dReLU is also trained with, at the two largest budgets.
        distill: weight in the variants that have one.
        sources: texts, see `prepare_corpus`.
        held_out_tokens: scored in each run.
        top_shares: shares of neurons kept, by value, for the paper's Table 3.
    """

    config: Mapping[str, Any]
    base: Recipe
    continued: Recipe
    budgets: tuple[int, ...]
    density_penalty: float
    distill: float
    sources: tuple[Source, ...]
    held_out_tokens: int
    other_penalties: tuple[float, ...] = (0.0, 0.3, 3.0)
    top_shares: tuple[float, ...] = (0.5, 0.2, 0.15, 0.1)

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary."""
        return int(self.config["vocab_size"])

    def recipe(self, variant: Variant, tokens: int) -> Recipe:
        """Of a variant at a budget."""
        return replace(
            self.continued,
            tokens=tokens,
            density_penalty=self.density_penalty if variant.is_penalised else 0.0,
            distill=self.distill if variant.is_distilled else 0.0,
        )


def _llama(hidden: int, layers: int, ffn: int, *, heads: int, vocab: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": hidden // heads,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "dtype": "float32",
    }


_SMALL = Recipe(
    tokens=2_500_000,
    seq_len=256,
    batch_tokens=1024,
    learning_rate=3e-3,
    min_rate=3e-4,
    warmup_share=0.05,
    pass_tokens=1024,
)
_LARGE = Recipe(
    tokens=200_000_000,
    seq_len=512,
    batch_tokens=65_536,
    learning_rate=1e-3,
    min_rate=1e-4,
    pass_tokens=32_768,
)

PRESETS: Mapping[str, Preset] = {
    "small": Preset(
        config=_llama(128, 4, 512, heads=4, vocab=4096),
        base=_SMALL,
        continued=replace(_SMALL, learning_rate=2e-3, min_rate=1e-4, seed=2),
        budgets=(250_000, 500_000, 1_000_000, 2_000_000),
        density_penalty=1.0,
        distill=1.0,
        sources=(Source("tinystories"), Source("children_books", max_bytes=5_000_000)),
        held_out_tokens=65_536,
    ),
    "gpu": Preset(
        config=_llama(768, 12, 3072, heads=12, vocab=16_384),
        base=_LARGE,
        continued=replace(_LARGE, learning_rate=3e-4, min_rate=3e-5, seed=2),
        budgets=(12_500_000, 25_000_000, 50_000_000, 100_000_000),
        density_penalty=1.0,
        distill=1.0,
        sources=(
            Source("tinystories"),
            Source("children_books"),
            Source("synth_stories"),
            Source("classic_easy"),
        ),
        held_out_tokens=524_288,
    ),
    "tiny": Preset(
        config=_llama(32, 2, 64, heads=2, vocab=300),
        base=replace(_SMALL, tokens=1024, seq_len=32, batch_tokens=128),
        continued=replace(_SMALL, tokens=1024, seq_len=32, batch_tokens=128, seed=2),
        budgets=(256, 512),
        density_penalty=1.0,
        distill=1.0,
        sources=(Source("tinystories"),),
        held_out_tokens=256,
        other_penalties=(0.0,),
        top_shares=(0.5, 0.1),
    ),
}
"""By name; `tiny` is for tests."""
