"""From a SwiGLU checkpoint and text to a sparse checkpoint; a killed run resumes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.train.checkpoint import keep_freed_memory
from powerinfer.train.sparsify.ffn import ActivationName
from powerinfer.train.sparsify.fit import FIT_FOLDER, fit_layers
from powerinfer.train.sparsify.from_gguf import write_checkpoint
from powerinfer.train.sparsify.log import LOG_FILE
from powerinfer.train.sparsify.model import SparseModel, load_model, set_activation
from powerinfer.train.sparsify.output import REPORT_FILE, OutputFolder
from powerinfer.train.sparsify.recipe import Recipe
from powerinfer.train.sparsify.run import SparsifyRun
from powerinfer.train.sparsify.saving import TOKENIZER_FILES, save
from powerinfer.train.sparsify.scoring import Score, score
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
_CHECKPOINT = "checkpoint"
_BEFORE_FILE, _FITTED_FILE = "before.json", "fitted.json"


@dataclass(frozen=True)
class SparsifyPlan:
    """A Llama- or Mistral-shaped checkpoint, texts to train on, and the folder to write.

    Attributes:
        checkpoint: a folder, or a GGUF file, which may be quantized.
        fit_tokens: tokens by which `down` of each FFN is solved for before the training; 0 for
            none.
    """

    checkpoint: Path
    texts: Sequence[Path]
    output: Path
    recipe: Recipe
    activation: ActivationName = "drelu"
    device: str = "cpu"
    fit_tokens: int = 0

    @property
    def fit_recipe(self) -> Recipe:
        """What the fit reads: rows in an order of its own."""
        return Recipe(
            tokens=max(1, self.fit_tokens),
            seq_len=self.recipe.seq_len,
            batch_tokens=self.recipe.seq_len,
            pass_tokens=self.recipe.pass_tokens,
            seed=self.recipe.seed + 1,
        )


def sparsify(plan: SparsifyPlan, progress: Progress) -> dict[str, object]:
    """Train a checkpoint towards sparsity, or resume that; finished parts are not done again.

    The result is the report, as it is written to `sparsify.json` in the output.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete.
        GGUFError: it is a GGUF file that is damaged.
        UnsupportedError: it has another architecture, experts or biases, or is a folder of
            quantized weights.
        NumericsError: the loss is no longer finite.
        DeviceError: a library of the extra `train` is missing.
        PowerInferError: a text cannot be read or is too short, the output holds something else, or
            it cannot be written.
    """
    if not plan.checkpoint.is_file():
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
    return {
        "checkpoint": text_identity(_files_of(plan.checkpoint)),
        "text": text_identity(plan.texts),
        "activation": plan.activation,
        **asdict(plan.recipe),
        # Runs of versions without it go on.
        **({"fit_tokens": plan.fit_tokens} if plan.fit_tokens else {}),
    }


def _files_of(checkpoint: Path) -> list[Path]:
    """The files that a checkpoint consists of."""
    if checkpoint.is_file():
        return [checkpoint]
    names = ("config.json", *TOKENIZER_FILES)
    files = [checkpoint / name for name in names if (checkpoint / name).is_file()]
    for pattern in ("*.safetensors", "*.bin"):
        files += sorted(checkpoint.glob(pattern))
    return files


def _train(
    plan: SparsifyPlan, output: OutputFolder, identity: dict[str, object], progress: Progress
) -> dict[str, object]:
    if plan.checkpoint.is_file():
        plan = replace(plan, checkpoint=_unpacked(plan.checkpoint, output.work / _CHECKPOINT))
    text = _read_text(plan, output, progress)
    model = load_model(plan.checkpoint, plan.device)
    _check_sizes(plan, model, text)
    before = _score_once(_BEFORE_FILE, model, text, output, progress)
    has_teacher = bool(plan.recipe.distill or plan.fit_tokens)
    teacher = load_model(plan.checkpoint, plan.device) if has_teacher else None
    set_activation(model, plan.activation)
    fitted = {} if teacher is None else _fit(plan, model, teacher, text, output, progress)
    if not plan.recipe.distill:
        teacher = None
    run = SparsifyRun(model, text.train.reshape(-1), plan.recipe, output.work, teacher)
    _finish(run, progress)
    after = _score(model, text, progress)
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
        **fitted,
        "run": identity,
    }
    output.keep_log(LOG_FILE)
    output.write(output.path / REPORT_FILE, report)
    save(model, plan.checkpoint, plan.output)
    return report


def _unpacked(file: Path, folder: Path) -> Path:
    """The checkpoint of a GGUF file, made once."""
    if not (folder / "config.json").exists():
        write_checkpoint(file, folder)
    return folder


def _read_text(plan: SparsifyPlan, output: OutputFolder, progress: Progress) -> StoredWindows:
    """Read the text as token ids, made once."""
    path, fit = output.work / _TEXT_FILE, plan.fit_recipe
    if not path.exists():
        tokenizer = load_tokenizer(plan.checkpoint)
        store_text(
            path,
            plan.texts,
            tokenizer,
            plan.recipe,
            lambda done, all_: progress(done, all_, "reading text"),
            more_rows=fit.steps * fit.rows if plan.fit_tokens else 0,
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


def _score(model: SparseModel, text: StoredWindows, progress: Progress) -> Score:
    return score(model, text.held_out, lambda done, all_: progress(done, all_, "scoring"))


def _score_once(
    name: str, model: SparseModel, text: StoredWindows, output: OutputFolder, progress: Progress
) -> dict[str, object]:
    """Score a model between two parts of the work; the file `name` keeps what came of it."""
    path = output.work / name
    found = output.read(path)
    if found is None:
        scored = _score(model, text, progress)
        found = {"perplexity": scored.perplexity, "zeros": scored.mean_zeros}
        output.write(path, found)
    return found


def _fit(
    plan: SparsifyPlan,
    model: SparseModel,
    teacher: SparseModel,
    text: StoredWindows,
    output: OutputFolder,
    progress: Progress,
) -> dict[str, object]:
    """Solve for the FFNs' `down`, if the plan says so; return what the report says about it."""
    if not plan.fit_tokens:
        return {}
    tokens, folder = text.train.reshape(-1), output.work / FIT_FOLDER
    num_tokens = fit_layers(
        model,
        teacher,
        tokens,
        plan.fit_recipe,
        folder,
        lambda done, all_: progress(done, all_, "fitting layers"),
    )
    found = _score_once(_FITTED_FILE, model, text, output, progress)
    return {
        "fit_tokens": num_tokens,
        "fit_perplexity": found["perplexity"],
        "fit_zeros": found["zeros"],
    }


def _finish(run: SparsifyRun, progress: Progress) -> None:
    """Make the remaining steps; save from time to time, and in the end if there were any."""
    recipe = run.recipe
    if run.is_done:
        return
    next_save = time.monotonic() + _SAVE_S
    while not run.is_done:
        figures = run.advance()
        zeros = sum(figures.zeros) / len(figures.zeros)
        now = f"training, loss {figures.loss:.3f}, zeros {zeros:.0%}"
        progress(run.step * recipe.step_tokens, recipe.steps * recipe.step_tokens, now)
        if time.monotonic() >= next_save:
            began = time.monotonic()
            run.save()
            took = time.monotonic() - began
            next_save = time.monotonic() + max(_SAVE_S, _SAVE_RATIO * took)
    run.save()
