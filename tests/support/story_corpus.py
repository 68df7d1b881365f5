"""A recipe small enough to train with in seconds; needs torch, as the story model does."""

from recipes.stories.corpus import Source
from recipes.stories.recipe import Recipe, Stage
from recipes.stories.story_model import StoryConfig

TINY_MODEL = StoryConfig(
    vocab_size=320,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    context_length=64,
    dropout=0.1,
)

TINY_RECIPE = Recipe(
    model=TINY_MODEL,
    sources=(Source("first", held_out=5), Source("second")),
    stages=(
        Stage(until=0.5, seq_len=16, shares={"first": 0.5, "second": 0.5}),
        Stage(until=1.0, seq_len=32, shares={"first": 1.0}),
    ),
    steps=8,
    step_tokens=128,
    pass_tokens=64,
    warmup_steps=2,
)
