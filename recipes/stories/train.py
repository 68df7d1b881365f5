"""Train the embedded model: ``python -m recipes.stories.train --data DIR --out DIR``.

Without further options this is the recipe of the shipped model. A bar shows loss and tokens per
second; every few minutes a checkpoint is written, and the same command continues a run that was
stopped or killed. At the end DIR holds the GGUF file and its model card.
"""

import argparse
import dataclasses
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

try:
    import torch
except ModuleNotFoundError:
    if __name__ != "__main__":
        raise
    sys.stderr.write("error: training needs torch: run scripts/setup train\n")
    sys.exit(2)
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from powerinfer.train.checkpoint import keep_freed_memory
from recipes.stories.card import measure, write_card
from recipes.stories.export import write_story_model
from recipes.stories.recipe import Recipe
from recipes.stories.training_run import TrainingRun

__all__ = ["MODEL_FILE", "Pace", "main", "train"]

MODEL_FILE = "stories-drelu-7m-f16.gguf"
MODEL_NAME = "PowerInfer stories dReLU 7M"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Pace:
    """When a run saves and measures; none of it changes the weights.

    Attributes:
        save_seconds: seconds between two checkpoints.
        save_steps: steps between two checkpoints, or 0 to go by time alone.
        score_steps: steps between two measurements on held-out stories, or 0 for none.
    """

    save_seconds: float = 180.0
    save_steps: int = 0
    score_steps: int = 200


def train(
    run: TrainingRun, pace: Pace | None = None, on_step: Callable[[int], None] | None = None
) -> None:
    """Bring a run to its last step, with a progress bar on stderr, and save it.

    Args:
        run: the run, new or continued.
        pace: when to save and to measure.
        on_step: called after every step with the number of steps made.
    """
    pace = pace or Pace()
    saved_at = time.monotonic()
    with _progress() as bar:
        task = bar.add_task("train", total=run.recipe.steps, completed=run.step, figures="")
        while run.step < run.recipe.steps:
            _advance(run, bar, task)
            if pace.score_steps and run.step % pace.score_steps == 0:
                _log.info("step %d: %.4f bits per byte on held-out stories", run.step, run.score())
            due = time.monotonic() - saved_at > pace.save_seconds
            if due or (pace.save_steps and run.step % pace.save_steps == 0):
                run.save()
                saved_at = time.monotonic()
            if on_step is not None:
                on_step(run.step)
    run.save()


def _advance(run: TrainingRun, bar: Progress, task: TaskID) -> None:
    before = run.seconds
    loss = run.advance()
    speed = run.recipe.step_tokens / (run.seconds - before)
    figures = f"{run.step}/{run.recipe.steps}  loss {loss:.3f}  {speed:.0f} tokens/s"
    bar.update(task, completed=run.step, figures=figures)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipes.stories.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with text/*.txt.zst")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint and model")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--steps", type=int, help="optimizer steps instead of the recipe's")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False)],
    )
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    recipe = Recipe()
    if options.steps is not None:
        recipe = dataclasses.replace(recipe, steps=options.steps)
    run = TrainingRun(recipe, options.data, options.out)
    train(run)
    path = options.out / MODEL_FILE
    write_story_model(path, run.model, run.tokenizer, MODEL_NAME)
    write_card(options.out / "MODEL_CARD.md", run, measure(run, options.data))
    _log.info("wrote %s (%.1f MB) and its model card", path, path.stat().st_size / 1e6)


if __name__ == "__main__":
    main()
