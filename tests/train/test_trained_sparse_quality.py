"""What sparsity does to models trained here, one per ReLU-family FFN, on text it never saw.

Each model is trained for some seconds on made-up stories, calibrated on others, and measured on
yet others. Trained weights matter: in random ones no neuron is more important than the next.
"""

import dataclasses
import random
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("zstandard", reason="zstandard is not installed")

import torch
from torch import Tensor

from corpus_folder import NAMES, THINGS, write_corpus
from powerinfer.bench.quality import measure_quality
from powerinfer.bench.quality_row import QualityPlan, QualityRow
from powerinfer.calibration.calibrate import calibrate
from powerinfer.calibration.files import save_calibration
from powerinfer.calibration.text import cut_windows
from powerinfer.gguf import TensorSpec, keys, model_identity, open_gguf, write_gguf
from powerinfer.loading import loader
from powerinfer.options.options import EngineOptions
from powerinfer.predictors.calibration import DEFAULT_DIAL
from recipes.stories.corpus import Source
from recipes.stories.export import write_story_model
from recipes.stories.recipe import Recipe, Stage
from recipes.stories.story_model import FeedForward
from recipes.stories.training_run import TrainingRun
from story_corpus import TINY_MODEL, TINY_RECIPE

# A story model is trained first.
pytestmark = pytest.mark.thorough

KINDS = ("lowbit:2", "lowbit:3", "lowbit:4", "sign", "sign+lowbit:2")
DIALS = (0.02, 0.01, 0.005)
# The dial holds where it was measured; other text loses somewhat more.
OTHER_TEXT = 2.0
OPTIONS = EngineOptions(threads=1)
PLAN = QualityPlan(window=128, num_windows=8, decode_steps=1, repeats=1)

RECIPE: Recipe = dataclasses.replace(
    TINY_RECIPE,
    model=dataclasses.replace(
        TINY_MODEL,
        vocab_size=400,
        hidden_size=128,
        intermediate_size=512,
        context_length=128,
        dropout=0.0,
    ),
    sources=(Source("stories", held_out=5),),
    stages=(Stage(until=1.0, seq_len=64, shares={"stories": 1.0}),),
    steps=90,
    step_tokens=512,
    pass_tokens=512,
    warmup_steps=10,
    sparsity_from=0.2,
)

_VERBS = ("found", "wanted", "lost", "painted", "looked for", "gave away", "hid", "dreamed of")
_PLACES = ("in the garden", "by the river", "under the bed", "on the hill", "at school", "at home")
_ENDS = ("laughed", "was very sad", "said thank you", "went to sleep", "ran away", "felt proud")


def _made_up(seed: int, count: int) -> list[str]:
    """Stories of four lines in which the same people, things and places come back."""
    chance = random.Random(seed)
    stories = []
    for _ in range(count):
        who, other = chance.sample(NAMES, 2)
        thing, place = chance.choice(THINGS), chance.choice(_PLACES)
        lines = (
            f"Once {who} {chance.choice(_VERBS)} {thing} {place}.",
            f"{other} {chance.choice(_VERBS)} it {chance.randint(2, 19)} times.",
            f'"Is that {thing}?" asked {who}. "It was {place}," said {other}.',
            f"Then {who} {chance.choice(_ENDS)}, and {other} {chance.choice(_ENDS)}.",
        )
        stories.append("\n".join(lines))
    return stories


Neurons = Callable[[FeedForward, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of FFN.

    Attributes:
        neurons: replaces those of the story model's FFN; None keeps its dReLU.
        architecture: of the file.
        activation: of the file.
    """

    neurons: Neurons | None
    architecture: str
    activation: str


def _reglu(ffn: FeedForward, x: Tensor) -> Tensor:
    gated: Tensor = torch.relu(ffn.gate(x)) * ffn.up(x)
    return gated


def _squared(ffn: FeedForward, x: Tensor) -> Tensor:
    return torch.relu(ffn.up(x)).square()


FAMILIES = {
    "drelu": Family(None, "llama", "drelu"),
    "reglu": Family(_reglu, "llama", "relu"),
    "relu2": Family(_squared, "arcee", "relu2"),
}


@pytest.fixture(scope="module", params=FAMILIES)
def rows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, QualityRow]:
    """Figures by setting; `brief` is `auto` without a calibration."""
    path = _train(FAMILIES[request.param], tmp_path_factory.mktemp(request.param))
    brief = _measure(path, dataclasses.replace(PLAN, settings=("auto",)))["auto"]
    _calibrate(path)
    plan = dataclasses.replace(PLAN, settings=("exact", "auto", *KINDS), errors=DIALS)
    return _measure(path, plan) | {"brief": brief}


def _measure(path: Path, plan: QualityPlan) -> dict[str, QualityRow]:
    text = "\n".join(_made_up(3, 60)).encode()
    return {each.row.setting: each.row for each in measure_quality(path, OPTIONS, plan, text)}


def _train(family: Family, folder: Path) -> Path:
    write_corpus(folder, "stories", _made_up(1, 600))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = TrainingRun(RECIPE, folder, folder / "run")
        for block in run.model.layers:
            if family.neurons is not None:
                replaced = partial(family.neurons, block.ffn)
                block.ffn.neurons = replaced  # type: ignore[method-assign]
                # Negative neurons would hide from the density penalty.
                block.register_forward_hook(lambda _, __, out: (out[0], out[1].abs()))
        before = run.score()
        for _ in range(RECIPE.steps):
            run.advance()
        assert run.score() < 0.4 * before
    finally:
        torch.set_num_threads(threads)
    story = folder / "story.gguf"
    write_story_model(story, run.model, run.tokenizer, "trained in a test")
    return _as_family(story, family, folder / "model.gguf")


def _as_family(story: Path, family: Family, path: Path) -> Path:
    """The file of a story model with the FFN that was trained in its place."""
    file = open_gguf(story)
    metadata: dict[str, Any] = {
        re.sub(r"^llama\.", f"{family.architecture}.", key): value
        for key, value in file.metadata.items()
    }
    metadata |= {keys.ARCHITECTURE: family.architecture, keys.FFN_ACTIVATION: family.activation}
    tensors: list[TensorSpec] = [
        (tensor.name, tensor.shape, tensor.format, tensor.data)
        for tensor in file.tensors.values()
        if family.architecture == "llama" or "ffn_gate" not in tensor.name
    ]
    write_gguf(path, metadata, tensors)
    return path


def _calibrate(path: Path) -> None:
    options = dataclasses.replace(OPTIONS, sparsity="exact")
    loaded = loader.load(loader.open_model(path, options), options, None)
    token_ids = loaded.tokenizer.encode("\n".join(_made_up(2, 120)), add_bos=False)
    text = cut_windows("other stories", token_ids, num_tokens=4096, context_length=128, bos_id=None)
    identity = model_identity(loaded.file)
    found = calibrate(loaded.model, text, identity=identity, dial=DEFAULT_DIAL)
    save_calibration(loaded.file, found)


def _share(value: float | None) -> float:
    assert value is not None
    return value


def test_exact_equals_dense_to_four_digits(rows: dict[str, QualityRow]) -> None:
    dense, exact = rows["off"], rows["exact"]
    assert f"{exact.perplexity:.4f}" == f"{dense.perplexity:.4f}"
    assert exact.agreement > 0.999
    # This is the model that was trained: of 400 tokens it hesitates between two or three.
    assert 1.5 < dense.perplexity < 4
    # Training made the model sparse: there is something to predict.
    assert 0.05 < _share(exact.active_share) < 0.4


@pytest.mark.parametrize("setting", ["brief", "auto"])
def test_auto_stays_near_dense(rows: dict[str, QualityRow], setting: str) -> None:
    """On the text in the package, which is no story, and on stories of the same making."""
    row = rows[setting]
    assert row.sparsity == "calibrated"
    assert any(kind != "exact" for kind in row.layer_kinds)
    assert row.perplexity_ratio == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("dial", DIALS)
@pytest.mark.parametrize("kind", ["auto", *KINDS])
def test_the_dial_is_respected_on_other_text(
    rows: dict[str, QualityRow], kind: str, dial: float
) -> None:
    """Every layer's FFN error, within `OTHER_TEXT` of the dial; and the dial is spent."""
    row = rows[f"{kind} @ {dial:g}"]
    if kind != "auto":
        assert row.layer_kinds == (kind,) * RECIPE.model.num_layers
    assert dial / 4 < _share(row.worst_ffn_error) < OTHER_TEXT * dial
    assert row.perplexity_ratio == pytest.approx(1, abs=0.01)
    assert _share(row.active_share) <= _share(row.predicted_share) < 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_smaller_dial_finds_more_neurons(rows: dict[str, QualityRow], kind: str) -> None:
    spent = [rows[f"{kind} @ {dial:g}"] for dial in DIALS]
    for loose, strict in pairwise(spent):
        assert _share(loose.worst_recall) < _share(strict.worst_recall)
        assert _share(loose.predicted_share) < _share(strict.predicted_share)


@pytest.mark.parametrize("dial", DIALS)
def test_more_bits_need_fewer_neurons(rows: dict[str, QualityRow], dial: float) -> None:
    kinds = ("lowbit:4", "lowbit:3", "lowbit:2", "sign")
    densities = [_share(rows[f"{kind} @ {dial:g}"].predicted_share) for kind in kinds]
    assert densities == sorted(densities)
