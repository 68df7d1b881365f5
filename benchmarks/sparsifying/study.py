"""The runs of a study: each in a folder of its own, finished ones are not repeated.

Several processes may work on one folder: a run that another one is at is left to it.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from powerinfer._files import write_atomically
from powerinfer._locks import try_lock
from powerinfer.errors import PowerInferError
from powerinfer.train.sparsify.model import (
    SparseModel,
    load_model,
    random_model,
    set_activation,
)
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.rows import TokenIds, rows_of
from powerinfer.train.sparsify.run import CHECKPOINT_FILE, SparsifyRun
from powerinfer.train.sparsify.saving import save
from powerinfer.train.sparsify.scoring import keep_top, score
from sparsifying.corpus import Corpus
from sparsifying.presets import VARIANTS, Preset

__all__ = ["BASE", "Job", "Study", "Watcher"]

BASE = "base"
FIGURES_FILE = "figures.json"
_SAVE_SECONDS = 60.0

Watcher = Callable[[str, int, int, str], None]
"""Called with (name of the run, steps made, steps of the run, what was measured)."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        variant: its key in `VARIANTS`; `base` for the SwiGLU model that all begin with.
        recipe: of its training.
        is_trial: dReLU with another density penalty.
    """

    variant: str
    recipe: Recipe
    is_trial: bool = False

    @property
    def name(self) -> str:
        """Of its folder."""
        if self.variant == BASE:
            return BASE
        penalty = f"-penalty-{self.recipe.density_penalty:g}" if self.is_trial else ""
        return f"{self.variant}{penalty}-{self.recipe.tokens}"


class Study:
    """All runs of a preset.

    Attributes:
        preset: what to do.
        device: where, as torch calls it.
    """

    def __init__(self, preset: Preset, corpus: Corpus, folder: Path, device: str) -> None:
        """Take what decides the study, and the folder of its runs; starts nothing."""
        self.preset, self.device = preset, device
        self._corpus, self._folder = corpus, folder
        rows = rows_of(corpus.held_out, preset.base.seq_len)
        self._held_out: TokenIds = rows[: max(1, preset.held_out_tokens // preset.base.seq_len)]

    @property
    def held_out_tokens(self) -> int:
        """Tokens scored in each run."""
        return len(self._held_out) * self.preset.base.seq_len

    @property
    def training_tokens(self) -> int:
        """Tokens of the text."""
        return len(self._corpus.training)

    @property
    def jobs(self) -> list[Job]:
        """The model all begin with, the runs, and trials; first of all the largest budget."""
        *smaller, largest = sorted(self.preset.budgets)
        return [
            Job(BASE, self.preset.base),
            *(
                Job(name, self.preset.recipe(variant, tokens))
                for tokens in (largest, *smaller)
                for name, variant in VARIANTS.items()
            ),
            *(
                self._trial(penalty, tokens)
                for tokens in (smaller[-1], largest)
                for penalty in self.preset.other_penalties
            ),
        ]

    def _trial(self, penalty: float, tokens: int) -> Job:
        recipe = self.preset.recipe(VARIANTS["drelu"], tokens)
        return Job("drelu", replace(recipe, density_penalty=penalty), is_trial=True)

    def figures(self, job: Job) -> dict[str, Any] | None:
        """What a finished run measured; None if it is not finished.

        Raises:
            PowerInferError: the folder holds a run with another recipe.
        """
        path = self._folder / job.name / FIGURES_FILE
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["recipe"] != asdict(job.recipe) or found["config"] != dict(self.preset.config):
            raise PowerInferError(f"{path.parent} holds a run of another study; choose another -o")
        return found

    def run(self, job: Job, watcher: Watcher) -> bool:
        """Bring a run to its end.

        Returns:
            False if another process is at it.
        """
        folder = self._folder / job.name
        folder.mkdir(parents=True, exist_ok=True)
        with _claimed(folder) as is_ours:
            if is_ours and self.figures(job) is None:
                self._run(job, folder, watcher)
            return is_ours

    def _run(self, job: Job, folder: Path, watcher: Watcher) -> None:
        clock = _CPUClock(folder / "cpu.json")
        model = self._start(job)
        start = self._score(model)
        teacher = load_model(self._folder / BASE, self.device) if job.recipe.distill else None
        run = SparsifyRun(model, self._corpus.training, job.recipe, folder, teacher)
        saved = time.monotonic()
        while not run.is_done:
            figures = run.advance()
            zeros = sum(figures.zeros) / len(figures.zeros)
            watcher(job.name, run.step, job.recipe.steps, f"loss {figures.loss:.3f}, {zeros:.1%}")
            if time.monotonic() - saved > _SAVE_SECONDS:
                run.save()
                clock.save()
                saved = time.monotonic()
        run.save()
        save(model, self._corpus.tokenizer, folder)
        found = {
            "variant": job.variant,
            "is_trial": job.is_trial,
            "config": dict(self.preset.config),
            "recipe": asdict(job.recipe),
            "tokens": job.recipe.steps * job.recipe.step_tokens,
            "start": start,
            **self._score(model),
            "top": self._top(model) if self._is_largest(job) else None,
            "cpu_seconds": clock.save(),
        }
        data = json.dumps(found, indent=1).encode() + b"\n"
        write_atomically(folder / FIGURES_FILE, data, error=PowerInferError)
        (folder / CHECKPOINT_FILE).unlink()

    def _start(self, job: Job) -> SparseModel:
        if job.variant == BASE:
            return random_model(self.preset.config, job.recipe.seed, self.device)
        model = load_model(self._folder / BASE, self.device)
        set_activation(model, VARIANTS[job.variant].activation)
        return model

    def _score(self, model: SparseModel) -> dict[str, Any]:
        found = score(model, self._held_out)
        zeros = [round(share, 5) for share in found.zeros]
        return {"perplexity": round(found.perplexity, 5), "zeros": zeros}

    def _top(self, model: SparseModel) -> dict[str, float]:
        """Perplexity by the share of neurons kept."""
        found = {}
        for share in self.preset.top_shares:
            with keep_top(model, share):
                found[f"{share:g}"] = self._score(model)["perplexity"]
        return found

    def _is_largest(self, job: Job) -> bool:
        return job.variant == BASE or job.recipe.tokens == max(self.preset.budgets)


class _CPUClock:
    """CPU seconds of a run, all sessions together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else 0.0
        self._began = time.process_time()

    def save(self) -> float:
        """Write and return them."""
        seconds: float = round(self._before + time.process_time() - self._began, 1)
        write_atomically(self._path, json.dumps(seconds).encode(), error=PowerInferError)
        return seconds


@contextmanager
def _claimed(folder: Path) -> Iterator[bool]:
    """Whether the run in a folder is this process's alone, until the end of the block."""
    with (folder / "lock").open("ab") as file:
        try:
            try_lock(file)
        except OSError:
            yield False
        else:
            yield True
