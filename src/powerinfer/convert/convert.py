"""Write a checkpoint of Hugging Face as a model file."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from powerinfer._replacing import find_target, make_folder_of
from powerinfer.convert.arrange import Target
from powerinfer.convert.encode import encoded, steps
from powerinfer.convert.planning import ModelPlan, plan_model
from powerinfer.convert.powerinfer.predictors import copy_activation
from powerinfer.errors import CheckpointError
from powerinfer.gguf import TensorSpec, write_gguf
from powerinfer.quant import type_of_name
from powerinfer.values import ByteArray

__all__ = ["ConvertReport", "Progress", "convert"]

Progress = Callable[[int, int], None]
"""Called with bytes written so far and in all."""

_THREADS = 2
# Encoded before they are written: enough that neither side waits, few enough for memory.
_AHEAD = 4


@dataclass(frozen=True)
class ConvertReport:
    """What converting did.

    Attributes:
        path: the file written.
        architecture: of the model.
        magic: of the file.
        num_tensors: in it.
        num_bytes: size of the file.
        outtype: format of most matrices.
        seconds: it took.
        notes: what a user should know.
    """

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
    """Write a checkpoint as one file, atomically.

    Args:
        folder: of the checkpoint.
        path: the file to make, with its folder; it must not exist, or be empty.
        outtype: format of matrices: `f32`, `f16`, `bf16`, `q8_0`; `auto` for that of the
            checkpoint, with predictors F16.
        predictors: folder of PowerInfer's predictors; those inside the checkpoint are found.
        is_plain: write what llama.cpp reads: no predictors, no transposed matrices.
        progress: told how far the writing is.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete, or `path` exists.
        UnsupportedError: the engine cannot run such a model.
        NumericsError: a number is not finite, or does not fit the format.
        TokenizerError: the tokenizer cannot be written so that it gives the same tokens.
        DeviceError: a file needs torch, which is not installed.
        GGUFError: the file cannot be written.
    """
    began = time.perf_counter()
    _check_target(path)
    plan = plan_model(folder, path, outtype=outtype, predictors=predictors, is_plain=is_plain)
    make_folder_of(path, error=CheckpointError)
    with ThreadPoolExecutor(_THREADS) as pool:
        write_gguf(path, plan.metadata, _specs(plan, pool, progress), magic=plan.magic)
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
    """Check that nothing would be lost: converting again takes minutes, other files may be gone."""
    target = find_target(path, error=CheckpointError)
    if target.exists() and target.stat().st_size:
        raise CheckpointError(
            f"{path}: already exists", remedy="remove it, or name another file with {output}"
        )


def _specs(
    plan: ModelPlan, pool: ThreadPoolExecutor, progress: Progress | None
) -> Iterator[TensorSpec]:
    """What the writer takes; every step is reported once it is written."""
    total = sum(_num_bytes(target, plan.formats[target.name]) for target in plan.targets)
    done = 0

    def reported(target: Target) -> Iterator[ByteArray]:
        nonlocal done
        for data in _in_order(target, plan.formats[target.name], pool):
            yield data
            done += data.nbytes
            if progress is not None:
                progress(done, total)

    for target in plan.targets:
        yield target.name, target.shape, plan.formats[target.name], partial(reported, target)


def _num_bytes(target: Target, format_name: str) -> int:
    block = type_of_name(format_name)
    return prod(target.shape) // block.block_size * block.block_bytes if block else 0


def _in_order(target: Target, format_name: str, pool: ThreadPoolExecutor) -> Iterator[ByteArray]:
    """The steps of a tensor, some of them encoded while those before are written."""
    waiting: deque[Future[ByteArray]] = deque()
    for step in steps(target):
        waiting.append(pool.submit(encoded, step, format_name, adds_one=target.adds_one))
        if len(waiting) > _AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
