"""The rule of bits on a CPU: what the logits of a token depend on, over whole tiny models.

They depend on the tokens of its own sequence, on which of those were prompt, and on the kernels;
not on who shares the step, how a prompt was cut, or the number of threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import NATIVE, using
from native_cases import FORMATS
from powerinfer.gguf import open_gguf
from powerinfer.kvcache import KVCache
from powerinfer.models import Model, load_model
from powerinfer.ops.protocol import KVType
from powerinfer.values import FloatArray
from tiny_models import TINY_EXPERTS, TINY_MODELS, wide, write_model

CONTEXT = 128
SPARSITIES = ("exact", "mlp", "lowbit:2", "sign")
# Query heads and KV heads: each with its own, four and eight that share one.
HEADS = ((8, 8), (8, 2), (8, 1))
STATEFUL = sorted(
    name
    for name, model in TINY_MODELS.items()
    if model.conv_layers or model.delta_rule or model.scan
)

few_examples = settings(max_examples=max(6, settings().max_examples // 2))
tables = pytest.mark.parametrize("backend", NATIVE)
# Portable kernels take seconds for whole models; without --slow only the sparse ones run on them.
quick_tables = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "native-portable" else name
        for name in NATIVE
    ],
)


@dataclass(frozen=True)
class Setup:
    """A model and what it runs on."""

    recipe: str
    format_name: str
    heads: tuple[int, int]
    window: int | None
    sparsity: str
    kv_type: KVType


@dataclass(frozen=True)
class Text:
    """A sequence: its tokens, of which the first were given and the others generated."""

    token_ids: tuple[int, ...]
    num_prompt: int


@dataclass(frozen=True)
class Piece:
    """Tokens [start, end) of a text, all of one kind."""

    text: int
    start: int
    end: int
    is_prompt: bool


Step = list[Piece]
Loads = Callable[[Setup, str, int], Model]


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Loads:
    """Loads the model of a setup: backend, threads."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def load(setup: Setup, backend: str, threads: int) -> Model:
        model = wide((TINY_MODELS | TINY_EXPERTS)[setup.recipe], setup.format_name)
        num_heads, num_kv_heads = setup.heads
        # Kernels of convolutions have their size among the keys.
        keys = model.metadata if setup.recipe in STATEFUL else {}
        keys = keys if setup.window is None else keys | {"attention.sliding_window": setup.window}
        model = replace(
            model,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=32,
            context_length=CONTEXT,
            metadata=keys,
        )
        name = f"{hash(replace(setup, sparsity='', kv_type=KVType.F16))}.gguf"
        with using(backend, threads) as ops:
            file = open_gguf(write_model(folder / name, model))
            wanted = None if setup.sparsity == "default" else setup.sparsity
            return load_model(file, ops, sparsity=wanted)

    return load


def logits_of(
    model: Model, texts: Sequence[Text], steps: Sequence[Step], kv_type: KVType
) -> list[FloatArray]:
    """Logits after every token of every text, computed in these steps."""
    kv: KVCache = model.new_cache(CONTEXT * len(texts), kv_type, num_slots=2 * len(texts))
    found = [np.empty((len(text.token_ids), 512), np.float32) for text in texts]
    for step in steps:
        parts = [(p.text, texts[p.text].token_ids[p.start : p.end], p.start) for p in step]
        logits = model.forward(kv.batch(parts, [p.is_prompt for p in step]), kv)
        first = 0
        for piece in step:
            last = first + piece.end - piece.start
            found[piece.text][piece.start : piece.end] = logits[first:last]
            first = last
    return found


def alone(texts: Sequence[Text]) -> list[Step]:
    """Each text by itself: its prompt in one step, then token by token."""
    steps: list[Step] = []
    for number, text in enumerate(texts):
        steps.append([Piece(number, 0, text.num_prompt, is_prompt=True)])
        for at in range(text.num_prompt, len(text.token_ids)):
            steps.append([Piece(number, at, at + 1, is_prompt=False)])
    return steps


def shared(texts: Sequence[Text], random: np.random.Generator) -> list[Step]:
    """The texts side by side in pieces of any length, some in each step; drafts among them."""
    waiting = [_pieces(number, text, random) for number, text in enumerate(texts)]
    steps: list[Step] = []
    while any(waiting):
        step: Step = []
        for pieces in waiting:
            if pieces and random.random() < 0.8:
                step.append(pieces.pop(0))
        if step:
            random.shuffle(step)
            steps.append(step)
    return steps


def _pieces(number: int, text: Text, random: np.random.Generator) -> list[Piece]:
    end, middle = len(text.token_ids), text.num_prompt
    cuts = {0, middle, end}
    for at in range(1, end):
        if random.random() < (0.5 if at > middle else 0.15):
            cuts.add(at)
    return [Piece(number, a, b, is_prompt=a < middle) for a, b in pairwise(sorted(cuts))]


@st.composite
def some_texts(draw: st.DrawFn) -> list[Text]:
    """One to 32 texts of mixed lengths."""
    most = draw(st.sampled_from([60, 25, 6]))
    sizes = st.tuples(st.integers(1, most), st.integers(0, 8))
    wanted = draw(st.lists(sizes, min_size=1, max_size=32 if most == 6 else 240 // most))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [
        Text(tuple(random.integers(0, 512, given + generated).tolist()), given)
        for given, generated in wanted
    ]


def check(loads: Loads, backend: str, setup: Setup, texts: list[Text], seed: int) -> None:
    random = np.random.default_rng(seed)
    threads = random.choice([1, 2, 3], 2).tolist()
    expected = logits_of(loads(setup, backend, threads[0]), texts, alone(texts), setup.kv_type)
    steps = shared(texts, random)
    got = logits_of(loads(setup, backend, threads[1]), texts, steps, setup.kv_type)
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_array_equal(one, other, f"text {number} of {len(texts)}")


def setups(sparsities: Sequence[str]) -> st.SearchStrategy[Setup]:
    recipe = st.sampled_from(["bamboo", "opt-powerinfer"])
    dense = st.sampled_from(["llama", "bamboo", "llama-relu"])
    return st.builds(
        Setup,
        dense if sparsities == ("off",) else recipe,
        st.sampled_from(FORMATS),
        st.sampled_from(HEADS),
        st.sampled_from([None, 7, 50]),
        st.sampled_from(sparsities),
        st.sampled_from(list(KVType)),
    )


@quick_tables
@few_examples
@given(setup=setups(("off",)), texts=some_texts(), seed=st.integers(0, 2**32 - 1))
def test_dense_models_keep_the_rule(
    backend: str, loads: Loads, setup: Setup, texts: list[Text], seed: int
) -> None:
    check(loads, backend, setup, texts, seed)


@quick_tables
@few_examples
@given(
    setup=st.builds(
        Setup,
        st.sampled_from(STATEFUL),
        st.sampled_from(FORMATS),
        st.sampled_from(HEADS),
        st.none(),
        st.just("default"),
        st.sampled_from(list(KVType)),
    ),
    texts=some_texts(),
    seed=st.integers(0, 2**32 - 1),
)
def test_models_with_state_keep_the_rule(
    backend: str, loads: Loads, setup: Setup, texts: list[Text], seed: int
) -> None:
    check(loads, backend, setup, texts, seed)


@tables
@few_examples
@given(setup=setups(SPARSITIES), texts=some_texts(), seed=st.integers(0, 2**32 - 1))
def test_sparse_models_keep_the_rule(
    backend: str, loads: Loads, setup: Setup, texts: list[Text], seed: int
) -> None:
    check(loads, backend, setup, texts, seed)


@quick_tables
@few_examples
@given(
    setup=st.builds(
        Setup,
        st.sampled_from(sorted(TINY_EXPERTS)),
        st.sampled_from(FORMATS),
        st.sampled_from(HEADS),
        st.sampled_from([None, 7]),
        st.sampled_from(["off", "default"]),
        st.sampled_from(list(KVType)),
    ),
    texts=some_texts(),
    seed=st.integers(0, 2**32 - 1),
)
def test_models_with_experts_keep_the_rule(
    backend: str, loads: Loads, setup: Setup, texts: list[Text], seed: int
) -> None:
    """`default` is `exact` where the activation is sparse."""
    check(loads, backend, setup, texts, seed)
