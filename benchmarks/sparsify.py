"""SwiGLU, ReGLU and dReLU at equal tokens: trains a small SwiGLU model, then each of them from it.

    PYTHONPATH=. python benchmarks/sparsify.py --preset small --data DIR -o OUT --report small.json

DIR is a folder with `text/NAME.train.txt.zst`, see recipes/stories/corpus.py. Every
run has a folder in OUT; the same command goes on where it was stopped and repeats nothing that is
finished. Start it twice to use two cores: a run that one process is at is left to it. Each folder
then holds a checkpoint, which `powerinfer convert` reads. docs/sparsify/experiment.md shows what
came of it.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

from powerinfer.errors import PowerInferError
from powerinfer.train.checkpoint import keep_freed_memory
from sparsifying.corpus import prepare_corpus
from sparsifying.presets import PRESETS
from sparsifying.report import write_report
from sparsifying.study import BASE, Study

_WAIT_SECONDS = 5.0
_SHOW_SECONDS = 10.0


class _Lines:
    """A line on stderr every some seconds."""

    def __init__(self) -> None:
        self._shown = 0.0

    def __call__(self, name: str, step: int, steps: int, figures: str) -> None:
        if step == steps or time.monotonic() - self._shown > _SHOW_SECONDS:
            self._shown = time.monotonic()
            print(f"{name}: step {step} of {steps}, {figures} zeros", file=sys.stderr, flush=True)


def train_all(study: Study, report: Path) -> None:
    """Bring every run to its end, and write the report after each."""
    lines = _Lines()
    for job in study.jobs:
        while not study.run(job, lines) and job.name == BASE:
            time.sleep(_WAIT_SECONDS)
        write_report(report, study)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="small")
    parser.add_argument("--data", type=Path, required=True, help="folder with text/*.txt.zst")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--report", type=Path, help="JSON file (default: OUT/report.json)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    preset = PRESETS[options.preset]
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        corpus = prepare_corpus(
            options.data, options.out / "corpus", preset.sources, preset.vocab_size
        )
        study = Study(preset, corpus, options.out, device)
        train_all(study, options.report or options.out / "report.json")
    except PowerInferError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
