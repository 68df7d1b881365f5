"""A device with a side stream: uploads run on a thread, beside steps, and come when they like."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from late_streams import FakeEvent, FakeStream, LateExecutor, Machine
from powerinfer.ops.gpu import uploads
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Staging, Uploader

__all__ = ["FakeGPU", "Machine", "PatientUploader", "replace_everywhere", "running_machine"]


class FakeGPU(TorchGPU):
    """Torch's cpu device that believes to be one with streams."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__("cpu")
        self.is_cuda = True

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def keep_for_stream(self, tensor: torch.Tensor) -> None:
        stream: Any = torch.cuda.current_stream()
        stream.kept.add(tensor.untyped_storage().data_ptr())


class PatientUploader(Uploader):
    """An uploader with a thread and a stream, whatever the device."""

    def __init__(self, _device: torch.device) -> None:
        super().__init__(torch.device("cuda", 0))


def replace_everywhere(patch: pytest.MonkeyPatch, old: object, new: object) -> None:
    """Replace a function or class in all modules that imported it."""
    found = 0
    for name, module in list(sys.modules.items()):
        if not name.startswith(("powerinfer", "placed_models")):
            continue
        for attribute, value in list(vars(module).items()):
            if value is old:
                patch.setattr(module, attribute, new)
                found += 1
    assert found, f"nothing uses {old}"


@contextmanager
def running_machine(
    patch: pytest.MonkeyPatch, seed: int = 0, *, most_late: int = 3
) -> Iterator[Machine]:
    """A machine in the place of torch's streams and events; no race may be found at its end."""
    machine = Machine(seed, most_late)
    patch.setattr(torch.cuda, "Event", lambda **_: FakeEvent(machine))
    patch.setattr(torch.cuda, "Stream", lambda *_: FakeStream(machine))
    patch.setattr(torch.cuda, "current_stream", machine.current_stream)
    patch.setattr(torch.cuda, "stream", machine.stream)
    patch.setattr(torch.cuda, "device", lambda _: machine.stream(machine.current_stream()))
    patch.setattr(uploads, "ThreadPoolExecutor", lambda *some: LateExecutor(machine, *some))
    _watch_staging(patch, machine)
    yield machine
    assert not machine.races, "\n".join(machine.races[:5])


def _watch_staging(patch: pytest.MonkeyPatch, machine: Machine) -> None:
    """Rows are gathered in memory that the device has read."""
    room, mark_sent = Staging.room, Staging.mark_sent

    def token(staging: Staging) -> object:
        # Names outlive what they name, and must not keep it.
        found: object = staging.__dict__.setdefault("token", object())
        return found

    def watched_room(self: Staging, *sizes: int) -> Any:
        found = room(self, *sizes)
        machine.write_on_host((token(self), self._next))
        return found

    def watched_mark(self: Staging) -> None:
        machine.read((token(self), self._next))
        mark_sent(self)

    patch.setattr(Staging, "room", watched_room)
    patch.setattr(Staging, "mark_sent", watched_mark)
