"""The state of one training run: texts, model, optimizers and the place in the schedule."""

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from powerinfer.train.checkpoint import load_checkpoint, save_checkpoint
from powerinfer.train.density import DensityPenalty
from recipes.stories.corpus import (
    Mixture,
    PackedStream,
    Source,
    TokenArray,
    join_documents,
    read_documents,
    text_path,
)
from recipes.stories.evaluate import score_stories
from recipes.stories.recipe import Recipe
from recipes.stories.story_model import StoryModel
from recipes.stories.vocabulary import encode_documents, load_or_build

__all__ = ["CHECKPOINT_FILE", "VOCABULARY_FILE", "TrainingRun"]

CHECKPOINT_FILE = "checkpoint.pt"
VOCABULARY_FILE = "vocabulary.json"


class TrainingRun:
    """One training run; two runs that reach the same step are equal, however often interrupted.

    Attributes:
        recipe: what is done.
        tokenizer: the run's own vocabulary.
        model: the weights so far.
        step: optimizer steps made.
        seconds: time spent in them, all sessions together.
        held_out: stories never trained on, for watching progress.
    """

    def __init__(self, recipe: Recipe, data: Path, out: Path) -> None:
        """Read the texts under `data`, and continue the run in `out` if there is one.

        Raises:
            PowerInferError: a text is missing, or `out` holds a run with another recipe.
        """
        self.recipe = recipe
        self._out = out
        out.mkdir(parents=True, exist_ok=True)
        texts = {source.name: _split_documents(data, source) for source in recipe.sources}
        self.held_out = texts[recipe.sources[0].name][1]
        self.tokenizer = load_or_build(
            out / VOCABULARY_FILE,
            (document for kept, _ in texts.values() for document in kept),
            recipe.model.vocab_size,
        )
        streams = {name: self._stream(name, kept) for name, (kept, _) in texts.items()}
        self._mixture = Mixture(streams, recipe.seed)
        torch.manual_seed(recipe.seed)
        self.model = StoryModel(recipe.model)
        self._optimizers = _make_optimizers(self.model, recipe)
        self.step = 0
        self.seconds = 0.0
        self._resume()

    def _stream(self, name: str, documents: list[str]) -> PackedStream:
        token_ids = join_documents(encode_documents(self.tokenizer, documents))
        return PackedStream(name, token_ids, self.recipe.seed)

    def _resume(self) -> None:
        state = load_checkpoint(self._out / CHECKPOINT_FILE, repr(self.recipe))
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._mixture.restore(state["mixture"])
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """Write the checkpoint, atomically."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "mixture": self._mixture.state(),
            "step": self.step,
            "seconds": self.seconds,
        }
        save_checkpoint(self._out / CHECKPOINT_FILE, repr(self.recipe), state)

    def advance(self) -> float:
        """Make one optimizer step and return its mean loss in nats per token."""
        began = time.monotonic()
        recipe, stage = self.recipe, self.recipe.stage(self.step)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_rate"] * recipe.rate(self.step)
        count = recipe.step_tokens // stage.seq_len
        rows = self._mixture.rows(self.step, count, stage.seq_len, stage.shares)
        passes = np.array_split(rows, max(1, recipe.step_tokens // recipe.pass_tokens))
        self.model.train()
        loss = sum((self._backward(part, len(part) / count) for part in passes), 0.0)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.max_gradient)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        self.step += 1
        self.seconds += time.monotonic() - began
        return loss

    def _backward(self, rows: TokenArray, share: float) -> float:
        token_ids = torch.from_numpy(rows.astype(np.int64))
        weight, density = self.recipe.density_weight(self.step), DensityPenalty()
        self.model.observer = density if weight else None
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = self.model(token_ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), token_ids[:, 1:].flatten())
            penalty = density.mean() * weight if weight else 0.0
        ((loss + penalty) * share).backward()
        self.model.observer = None
        mean = float(loss.detach())
        return mean * share

    def score(self) -> float:
        """Bits per byte on the held-out stories that fit the context."""
        encoded = encode_documents(self.tokenizer, self.held_out)
        fits = [i for i, ids in enumerate(encoded) if len(ids) < self.recipe.model.context_length]
        num_bytes = [len(self.held_out[i].encode()) for i in fits]
        return score_stories(self.model, [encoded[i] for i in fits], num_bytes).bits_per_byte


def _split_documents(data: Path, source: Source) -> tuple[list[str], list[str]]:
    """Documents to train on, documents held out."""
    documents = read_documents(text_path(data, source.name), source.max_bytes)
    cut = len(documents) - source.held_out
    return documents[:cut], documents[cut:]


def _make_optimizers(model: StoryModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest; Muon learns more from each token here."""
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
    norms = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    muon = torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay)
    adam = torch.optim.AdamW(
        [
            {"params": [model.embedding.weight], "weight_decay": recipe.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ],
        lr=recipe.vector_rate,
        betas=(0.9, 0.95),
    )
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["full_rate"] = group["lr"]
    return [muon, adam]
