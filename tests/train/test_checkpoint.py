"""Checkpoints of training runs: whole or not at all, and only of the same run."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from patience import PATIENCE_S
from powerinfer.errors import PowerInferError
from powerinfer.train import checkpoint
from powerinfer.train.checkpoint import load_checkpoint, save_checkpoint, write_torch_file

STATE: dict[str, Any] = {"steps": 3, "weights": torch.arange(1000.0), "notes": ["a", {"b": 1}]}


def test_a_state_comes_back_with_the_random_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    assert load_checkpoint(path, "recipe") is None
    save_checkpoint(path, "recipe", STATE)
    wanted = torch.rand(3)
    found = load_checkpoint(path, "recipe")
    assert found is not None
    assert torch.equal(found["weights"], STATE["weights"])
    assert (found["steps"], found["notes"]) == (3, ["a", {"b": 1}])
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("written", [0, 100, 4000])
def test_a_full_disk_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    class Full:
        def __init__(self, file: BinaryIO) -> None:
            self.file, self.left = file, written

        def write(self, data: Any) -> int:
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(data)

    path = tmp_path / "run.checkpoint"
    save_checkpoint(path, "recipe", STATE)
    before = path.read_bytes()
    real = checkpoint._Disk
    monkeypatch.setattr(checkpoint, "_Disk", lambda file: real(cast(BinaryIO, Full(file))))
    with pytest.raises(PowerInferError, match=r"run\.checkpoint: cannot write: No space left"):
        save_checkpoint(path, "recipe", {"steps": 4})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_saved_is_a_fault_of_the_program(tmp_path: Path) -> None:
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        write_torch_file(tmp_path / "a.pt", lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_other_runs_and_damage_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    save_checkpoint(path, "recipe", STATE)
    with pytest.raises(PowerInferError, match="another recipe; continue with the same options"):
        load_checkpoint(path, "other")
    whole = path.read_bytes()
    for damaged in (b"", b"hello", whole[: len(whole) // 2], whole[:-1], b"\0" + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(PowerInferError, match="is no checkpoint of a training run") as caught:
            load_checkpoint(path, "recipe")
        assert "\n" not in str(caught.value)


def test_ctrl_c_while_torch_writes_leaves_the_older_file(tmp_path: Path) -> None:
    """In a program, at every `write` that torch's C++ calls: at some, it would abort."""
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from powerinfer.train import checkpoint

        write, count, at = checkpoint._Disk.write, 0, None

        def interrupted(disk, data):
            global count
            count += 1
            if count - 1 == at:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            return write(disk, data)

        path = Path(sys.argv[1])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        checkpoint._Disk.write = interrupted
        checkpoint.save_checkpoint(path, "recipe", {"steps": 1})
        total, seen = count, set()
        for at in range(total):
            count = 0
            try:
                checkpoint.save_checkpoint(path, "recipe", {"steps": 2})
            except KeyboardInterrupt:
                found = checkpoint.load_checkpoint(path, "recipe")
                seen.add((found["steps"], *os.listdir(path.parent)))
        print(total > 5, seen)
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "run.checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True {(1, 'run.checkpoint')}\n"
