"""From a SwiGLU checkpoint and text to a sparse checkpoint; a killed run resumes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.train.checkpoint import keep_freed_memory
from powerinfer.train.sparsify.ffn import ActivationName
from powerinfer.train.sparsify.model import SparseModel, load_model, set_activation
from powerinfer.train.sparsify.output import REPORT_FILE, OutputFolder
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.run import SparsifyRun
from powerinfer.train.sparsify.saving import TOKENIZER_FILES, save
from powerinfer.train.sparsify.scoring import score
from powerinfer.train.sparsify.source import read_source
from powerinfer.train.sparsify.text import load_tokenizer, open_text, store_text
from powerinfer.train.stored_windows import StoredWindows
from powerinfer.train.token_windows import text_identity

__all__ = ["Progress", "SparsifyPlan", "sparsify"]

Progress = Callable[[int, int, str], None]
"""Called with how much is done, how much there is, and what it is."""

# Least seconds between two saves, also as a multiple of the time that the last one took.
_SAVE_S = 30.0
_SAVE_RATIO = 30.0
_TEXT_FILE = "text.ids"
_BEFORE_FILE = "before.json"


@dataclass(frozen=True)
class SparsifyPlan:
    """A Llama- or Mistral-shaped checkpoint, texts to train on, and the folder to write."""

    checkpoint: Path
    texts: Sequence[Path]
    output: Path
    recipe: Recipe
    activation: ActivationName = "drelu"
    device: str = "cpu"


def sparsify(plan: SparsifyPlan, progress: Progress) -> dict[str, object]:
    """Train a checkpoint towards sparsity, or resume that; finished parts are not done again.

    The result is the report, as it is written to `sparsify.json` in the output.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete.
        UnsupportedError: it has another architecture, experts or biases, or is quantized.
        NumericsError: the loss is no longer finite.
        DeviceError: a library of the extra `train` is missing.
        PowerInferError: a text cannot be read or is too short, the output holds something else, or
            it cannot be written.
    """
    read_source(plan.checkpoint)
    keep_freed_memory()
    output = OutputFolder(plan.output)
    identity = _identity(plan)
    report = output.finished(identity)
    if report is None:
        with output.locked():
            output.claim(identity)
            report = _train(plan, output, identity, progress)
    output.clean()
    return dict(report)


def _identity(plan: SparsifyPlan) -> dict[str, object]:
    """Values that identify this run."""
    names = ("config.json", *TOKENIZER_FILES)
    files = [plan.checkpoint / name for name in names if (plan.checkpoint / name).is_file()]
    for pattern in ("*.safetensors", "*.bin"):
        files += sorted(plan.checkpoint.glob(pattern))
    return {
        "checkpoint": text_identity(files),
        "text": text_identity(plan.texts),
        "activation": plan.activation,
        **asdict(plan.recipe),
    }


def _train(
    plan: SparsifyPlan, output: OutputFolder, identity: dict[str, object], progress: Progress
) -> dict[str, object]:
    text = _read_text(plan, output, progress)
    model = load_model(plan.checkpoint, plan.device)
    _check_sizes(plan, model, text)
    before = _score_before(model, text, output, progress)
    teacher = load_model(plan.checkpoint, plan.device) if plan.recipe.distill else None
    set_activation(model, plan.activation)
    run = SparsifyRun(model, text.train.reshape(-1), plan.recipe, output.work, teacher)
    _finish(run, progress)
    after = score(model, text.held_out, lambda done, all_: progress(done, all_, "scoring"))
    tokens = run.recipe.steps * run.recipe.step_tokens
    report: dict[str, object] = {
        "path": str(plan.output),
        "activation": plan.activation,
        "steps": run.step,
        "tokens": tokens,
        "epochs": round(tokens / text.train.size, 3),
        "seconds": round(run.seconds, 1),
        "held_out_tokens": after.num_tokens,
        "perplexity_before": before["perplexity"],
        "perplexity": after.perplexity,
        "zeros": after.mean_zeros,
        "layers": [{"zeros": share} for share in after.zeros],
        "run": identity,
    }
    output.keep_log()
    output.write(output.path / REPORT_FILE, report)
    save(model, plan.checkpoint, plan.output)
    return report


def _read_text(plan: SparsifyPlan, output: OutputFolder, progress: Progress) -> StoredWindows:
    """Read the text as token ids, made once."""
    path = output.work / _TEXT_FILE
    if not path.exists():
        tokenizer = load_tokenizer(plan.checkpoint)
        store_text(
            path,
            plan.texts,
            tokenizer,
            plan.recipe,
            lambda done, all_: progress(done, all_, "reading text"),
        )
    return open_text(path, plan.recipe)


def _check_sizes(plan: SparsifyPlan, model: SparseModel, text: StoredWindows) -> None:
    config = model.network.config
    longest = config.max_position_embeddings
    if plan.recipe.seq_len > longest:
        raise UnsupportedError(
            f"rows of {plan.recipe.seq_len} tokens; the model has {longest} positions",
            remedy="choose a smaller {seq_len}",
        )
    largest = int(text.all.max())
    if largest >= config.vocab_size:
        raise CheckpointError(
            f"{plan.checkpoint}: its tokenizer gives token {largest}; the model has only "
            f"{config.vocab_size}"
        )


def _score_before(
    model: SparseModel, text: StoredWindows, output: OutputFolder, progress: Progress
) -> dict[str, object]:
    """Score the unchanged model, once."""
    path = output.work / _BEFORE_FILE
    found = output.read(path)
    if found is None:
        before = score(model, text.held_out, lambda done, all_: progress(done, all_, "scoring"))
        found = {"perplexity": before.perplexity}
        output.write(path, found)
    return found


def _finish(run: SparsifyRun, progress: Progress) -> None:
    """Make the remaining steps; save from time to time."""
    recipe = run.recipe
    next_save = time.monotonic() + _SAVE_S
    while not run.is_done:
        figures = run.advance()
        zeros = sum(figures.zeros) / len(figures.zeros)
        what = f"training, loss {figures.loss:.3f}, zeros {zeros:.0%}"
        progress(run.step * recipe.step_tokens, recipe.steps * recipe.step_tokens, what)
        if time.monotonic() >= next_save:
            began = time.monotonic()
            run.save()
            took = time.monotonic() - began
            next_save = time.monotonic() + max(_SAVE_S, _SAVE_RATIO * took)
    run.save()
