"""Conversion of a Hugging Face checkpoint to a model file."""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from powerinfer._replacing import find_target, make_folder_of
from powerinfer.convert.arrange import Target
from powerinfer.convert.encode import encoded, steps
from powerinfer.convert.planning import plan_model
from powerinfer.convert.powerinfer.predictors import copy_activation
from powerinfer.errors import CheckpointError
from powerinfer.gguf import write_gguf
from powerinfer.gguf.rewrite import Progress, StoredTensor, reporting
from powerinfer.values import ByteArray

__all__ = ["ConvertReport", "convert"]


_THREADS = 2
# Steps encoded ahead of the writer: enough that neither waits, few enough for memory.
_AHEAD = 4


@dataclass(frozen=True)
class ConvertReport:
    """Result of a conversion; `outtype` is the format of most matrices."""

    path: Path
    architecture: str
    magic: str
    num_tensors: int
    num_bytes: int
    outtype: str
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes of the file per second."""
        return self.num_bytes / self.seconds / 1e9


def convert(
    folder: Path,
    path: Path,
    *,
    outtype: str = "auto",
    predictors: Path | None = None,
    is_plain: bool = False,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert a checkpoint to one file, atomically.

    Args:
        path: file to write (its folder is created); must not exist, or be empty.
        outtype: format of matrices: `f32`, `f16`, `bf16`, `q8_0`; `auto` for the checkpoint's, or
            F16 with predictors.
        predictors: folder of PowerInfer predictors; those inside the checkpoint are found anyway.
        is_plain: write for llama.cpp: no predictors, no transposed matrices.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete, or `path` exists.
        UnsupportedError: the engine cannot run such a model.
        NumericsError: a number is not finite or does not fit the format.
        TokenizerError: the tokenizer cannot be written such that it yields the same tokens.
        DeviceError: a file needs torch, which is not installed.
        GGUFError: the file cannot be written.
    """
    began = time.perf_counter()
    _check_target(path)
    plan = plan_model(folder, path, outtype=outtype, predictors=predictors, is_plain=is_plain)
    make_folder_of(path, error=CheckpointError)
    with ThreadPoolExecutor(_THREADS) as pool:
        stored = [_stored(target, plan.formats[target.name], pool) for target in plan.targets]
        write_gguf(path, plan.metadata, reporting(stored, progress), magic=plan.magic)
    copy_activation(plan.activation_files, path)
    return ConvertReport(
        path=path,
        architecture=plan.architecture.name,
        magic=plan.magic,
        num_tensors=len(plan.targets),
        num_bytes=path.stat().st_size,
        outtype=plan.outtype,
        seconds=time.perf_counter() - began,
        notes=plan.notes,
    )


def _check_target(path: Path) -> None:
    """Check that no file would be lost: converting takes minutes, and other files may be unique."""
    target = find_target(path, error=CheckpointError)
    if target.exists() and target.stat().st_size:
        raise CheckpointError(
            f"{path}: already exists", remedy="remove it, or name another file with {output}"
        )


def _stored(target: Target, format_name: str, pool: ThreadPoolExecutor) -> StoredTensor:
    chunks = partial(_in_order, target, format_name, pool)
    return StoredTensor(target.name, target.shape, format_name, chunks)


def _in_order(target: Target, format_name: str, pool: ThreadPoolExecutor) -> Iterator[ByteArray]:
    """Yield the encoded steps of a tensor, encoding some ahead of the writer."""
    waiting: deque[Future[ByteArray]] = deque()
    for step in steps(target):
        waiting.append(pool.submit(encoded, step, format_name, target.shape[-1], target.change))
        if len(waiting) > _AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
