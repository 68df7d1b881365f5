"""The result file of a study."""

import json
from pathlib import Path
from typing import Any

import torch

from powerinfer._files import write_atomically
from powerinfer.bench.machine import describe_machine
from powerinfer.errors import PowerInferError
from sparsifying.study import BASE, Study

__all__ = ["write_report"]


def write_report(path: Path, study: Study) -> None:
    """Write what the finished runs measured, machine, model and recipes; atomically."""
    found = {job.name: study.figures(job) for job in study.jobs}
    runs = {name: figures for name, figures in found.items() if figures is not None}
    report: dict[str, Any] = {
        "machine": describe_machine() | {"torch": torch.__version__},
        "device": study.device,
        "config": dict(study.preset.config),
        "held_out_tokens": study.held_out_tokens,
        "training_tokens": study.training_tokens,
        "cpu_seconds": round(sum(figures["cpu_seconds"] for figures in runs.values()), 1),
        "base": runs.pop(BASE, None),
        "runs": list(runs.values()),
        "missing": [name for name, figures in found.items() if figures is None],
    }
    data = json.dumps(report, indent=1).encode() + b"\n"
    write_atomically(path, data, error=PowerInferError)
