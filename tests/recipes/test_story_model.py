"""The torch model: its fused gradients, its measurements, and the file it becomes."""

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("zstandard", reason="zstandard is not installed")

import torch
from torch import Tensor

from corpus_folder import tiny_stories
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.tokenizer import Tokenizer
from powerinfer.train.fused import DualReLU, GroupedAttention
from recipes.stories.evaluate import score_stories
from recipes.stories.export import write_story_model
from recipes.stories.sample import sample_story
from recipes.stories.story_model import StoryModel
from recipes.stories.vocabulary import build_vocabulary, encode_documents
from story_corpus import TINY_MODEL


@pytest.fixture
def model() -> StoryModel:
    torch.manual_seed(5)
    model = StoryModel(TINY_MODEL)
    with torch.no_grad():
        for parameter in model.parameters():  # far from zero, so that every part matters
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradients_of_the_dual_relu() -> None:
    torch.manual_seed(0)
    assert torch.autograd.gradcheck(DualReLU.apply, (_random(4, 6), _random(4, 6)))


def test_gradients_of_grouped_attention() -> None:
    torch.manual_seed(0)
    mask = torch.full((5, 5), float("-inf"), dtype=torch.float64).triu(1).repeat(2, 1)
    inputs = (_random(3, 10, 4), _random(3, 5, 4), _random(3, 5, 4), mask)
    assert torch.autograd.gradcheck(GroupedAttention.apply, inputs)


def test_training_and_evaluation_paths_agree(model: StoryModel) -> None:
    model.blocks.apply(lambda module: setattr(module, "p", 0.0))  # no dropout
    token_ids = torch.randint(0, TINY_MODEL.vocab_size, (3, 20))
    trained, evaluated = model.train()(token_ids), model.eval()(token_ids)
    torch.testing.assert_close(trained, evaluated, rtol=1e-4, atol=1e-4)


def test_stories_are_scored_one_by_one_after_bos(model: StoryModel) -> None:
    stories = [[5, 9, 200], [7] * 11, [300, 2]]
    num_bytes = [10, 30, 4]
    nats, zeros, total = 0.0, np.zeros(2), 0
    model.eval()

    def count(layer: int, neurons: Tensor) -> None:
        zeros[layer] += int((neurons == 0).sum())

    for story in stories:
        model.observer = count
        shares = torch.log_softmax(model(torch.tensor([[0, *story]])).detach()[0], -1)
        nats -= sum(float(shares[i, token]) for i, token in enumerate(story))
        total += (len(story) + 1) * TINY_MODEL.intermediate_size
    score = score_stories(model, stories, num_bytes)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / 44, rel=1e-5)
    assert score.inactive == pytest.approx(list(zeros / total))
    assert (score.stories, score.tokens) == (3, 16)


def test_the_file_computes_what_torch_computes(model: StoryModel, tmp_path: Path) -> None:
    documents = tiny_stories()
    vocabulary = build_vocabulary(documents, TINY_MODEL.vocab_size)
    path = tmp_path / "model.gguf"
    write_story_model(path, model, vocabulary, "tiny")
    file = open_gguf(path)
    assert file.metadata["powerinfer.ffn_activation"] == "drelu"
    assert file.tensors["blk.1.ffn_down_t.weight"].shape == (64, 32)
    loaded = load_model(file, ReferenceOps())
    assert loaded.sparsity == "exact"
    token_ids = Tokenizer.from_gguf(file).encode(documents[7])
    assert token_ids == [0, *encode_documents(vocabulary, documents[7:8])[0]]
    cache = loaded.new_cache(len(token_ids))
    batch = cache.batch([(0, token_ids, 0)], [True])
    ours = loaded.forward(batch, cache, logits_for=np.arange(len(token_ids), dtype=np.int32))
    theirs = model.eval()(torch.tensor([token_ids])).detach()[0].numpy()
    # F16 weights and keys: 11 bits, over two layers
    np.testing.assert_allclose(ours, theirs, atol=5e-3 * np.abs(theirs).max())


def test_samples_depend_on_the_seed_alone(model: StoryModel) -> None:
    vocabulary = build_vocabulary(tiny_stories(), TINY_MODEL.vocab_size)
    torch.manual_seed(1)
    first = sample_story(model, vocabulary, "Once", seed=4, max_tokens=12)
    torch.manual_seed(2)
    assert sample_story(model, vocabulary, "Once", seed=4, max_tokens=12) == first
    assert sample_story(model, vocabulary, "Once", seed=5, max_tokens=12) != first
    assert first.startswith("Once")
