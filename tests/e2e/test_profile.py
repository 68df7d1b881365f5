"""`powerinfer profile`: what it writes and prints, going on after any kill, faults."""

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE_S

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("zstandard", reason="zstandard is not installed")

import torch
import zstandard

from command_line import assert_error, invoke, run_json
from numpy_firing import count_firing
from powerinfer.gguf import model_identity, open_gguf
from powerinfer.tokenizer import Tokenizer
from powerinfer.train.token_windows import TokenWindows
from tiny_models import TINY_MODELS, write_model

SENTENCE = "Once upon a time there was a little dog. It had a red ball, and it liked to play.\n"
TEXT = "".join(SENTENCE.replace("dog", f"dog{number % 7}") for number in range(40))
OTHER = "It rained all day, so Tom built a boat of paper and let it swim in the yard.\n" * 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return write_model(tmp_path / "models" / "m.gguf", TINY_MODELS["llama-relu"])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _counts(folder: Path, layers: int = 2) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    loaded = [torch.load(folder / f"activation_{n}.pt") for n in range(layers)]
    assert all(each.dtype == torch.int64 and each.ndim == 1 for each in loaded)
    return np.stack([each.numpy() for each in loaded])


def test_counts_lie_beside_the_model(model: Path, text: Path) -> None:
    report = run_json("profile", "-m", model, "-f", text, "-c", "64")
    folder = model.parent / "activation"
    assert sorted(_files(folder)) == ["activation.json", "activation_0.pt", "activation_1.pt"]
    tokenizer = Tokenizer.from_gguf(open_gguf(model))
    windows = TokenWindows([text], lambda t: tokenizer.encode(t, add_bos=False), 64, 1)
    wanted = count_firing(open_gguf(model), [window.tolist() for window in windows])
    counts = _counts(folder)
    # The kernels round otherwise than f64: a value that is nearly zero may fire here only.
    assert np.abs(counts - wanted).sum() <= 1e-4 * wanted.sum()
    assert counts.max() <= report["tokens"]
    assert report["tokens"] == report["new_tokens"] > 2000
    assert report["path"] == str(folder)
    assert report["model"] == model_identity(open_gguf(model))
    assert report["texts"] == ["text.txt"]
    assert report["tokens_per_s"] > 0
    for number, layer in enumerate(report["layers"]):
        share = counts[number].sum() / report["tokens"] / 48
        assert layer["active_share"] == pytest.approx(share)
        assert layer["never_share"] == (counts[number] == 0).mean()
        assert 0 < layer["hot_share"] < 1
    fields = json.loads((folder / "activation.json").read_text())
    assert fields["fired"] == counts.sum(axis=1).tolist()


def test_a_finished_profile_is_not_counted_again(model: Path, text: Path) -> None:
    result = invoke("profile", "-m", model, "-f", text)
    assert result.exit_code == 0, result.output
    assert re.search(r"counted \d+ tokens at \d+ tokens/s of text\.txt", result.stdout)
    before = _files(model.parent / "activation")
    again = invoke("profile", "-m", model, "-f", text)
    assert again.exit_code == 0
    assert "tokens, in an earlier run, of text.txt" in again.stdout
    assert _files(model.parent / "activation") == before
    # Other tokens, another text: counted again.
    limited = run_json("profile", "-m", model, "-f", text, "--tokens", "1000")
    assert 0 < limited["new_tokens"] <= 1000
    # More than the text has.
    every = run_json("profile", "-m", model, "-f", text, "--tokens", "1000000000")
    after = _files(model.parent / "activation")
    assert every["new_tokens"] == every["tokens"] > 3000
    del before["activation.json"], after["activation.json"]
    assert after == before


def test_several_texts_and_compressed_ones(model: Path, text: Path, tmp_path: Path) -> None:
    small = tmp_path / "text.zst"
    small.write_bytes(zstandard.compress(TEXT.encode()))
    plain = run_json("profile", "-m", model, "-f", text, "-f", text, "-o", tmp_path / "a")
    packed = run_json("profile", "-m", model, "-f", small, "-f", text, "-o", tmp_path / "b")
    assert plain["tokens"] == packed["tokens"]
    np.testing.assert_array_equal(_counts(tmp_path / "a"), _counts(tmp_path / "b"))
    assert packed["texts"] == ["text.zst", "text.txt"]


def test_experts_are_counted_one_behind_the_other(text: Path, tmp_path: Path) -> None:
    recipe = TINY_MODELS["mixtral-drelu-transposed"]
    model = write_model(tmp_path / "experts.gguf", recipe)
    result = invoke("profile", "-m", model, "-f", text)
    assert "a token uses 3 of 5 experts" in result.stdout
    assert _counts(tmp_path / "activation").shape == (2, 5 * 48)


def test_comparing_profiles(model: Path, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(OTHER)
    run_json("profile", "-m", model, "-f", text, "-o", tmp_path / "a")
    common = ("profile", "-m", model, "-f", other, "-o", tmp_path / "b", "--compare")
    report = run_json(*common, tmp_path / "a")
    assert report["compared_with"] == str(tmp_path / "a")
    ours, theirs = _counts(tmp_path / "b"), _counts(tmp_path / "a")
    for number, layer in enumerate(report["layers"]):
        hottest = [set(np.argsort(-c[number], kind="stable")[:10].tolist()) for c in (ours, theirs)]
        assert layer["overlap"]["0.2"] == len(hottest[0] & hottest[1]) / 10
    assert set(report["overlap"]) == {"0.1", "0.2", "0.5"}
    same = run_json(*common, tmp_path / "b")
    assert set(same["overlap"].values()) == {1.0}
    printed = invoke(*common, tmp_path / "a").stdout
    assert re.search(r"layer +fire +hot 80 % +never +top 10 % +top 20 % +top 50 %", printed)
    assert re.search(r"^  all ", printed, re.MULTILINE)
    # What is wrong there shows before anything is counted.
    assert_error(invoke(*common, tmp_path / "none"), "none: cannot list the folder")


def test_drawing(model: Path, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    report = run_json("profile", "-m", model, "-f", text, "--plot", tmp_path / "plots")
    assert [Path(path).name for path in report["plots"]] == [
        "activation-frequency.png",
        "activation-frequency.svg",
    ]
    assert all(Path(path).stat().st_size > 1000 for path in report["plots"])


def test_plan_takes_the_exact_frequencies(model: Path, text: Path) -> None:
    tokens = run_json("profile", "-m", model, "-f", text)["tokens"]
    result = invoke("plan", "-m", model, "--vram-budget", "8", "--device", "cpu")
    folder = model.parent / "activation"
    assert f"frequencies: {folder} (counted on text.txt), {tokens} tokens" in result.stdout


# A program whose profile saves after each batch and has small batches.
_PROGRAM = textwrap.dedent("""
    import runpy, sys
    import powerinfer.calibration.window_pass as window_pass
    import powerinfer.train.profile.profile as profile

    window_pass._BATCH_TOKENS = 64
    profile._SAVE_EVERY_S = 0
    print("ready", flush=True)
    sys.argv[:] = ["powerinfer", "profile", *sys.argv[1:]]
    runpy.run_module("powerinfer", run_name="__main__", alter_sys=True)
""")


def _start(*arguments: str | Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _killed(
    process: "subprocess.Popen[bytes]", after_s: float, number: signal.Signals
) -> tuple[int, float]:
    """Send a signal some time after it has begun; return the exit code and how long it ran."""
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        began = time.monotonic()
        try:
            process.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            process.communicate(timeout=PATIENCE_S)
    return process.returncode, time.monotonic() - began


@pytest.mark.slow
def test_killed_at_any_moment_it_comes_to_the_same_bytes(
    model: Path, text: Path, tmp_path: Path
) -> None:
    text.write_text(TEXT * 12)
    arguments = ("-m", model, "-f", text, "-c", "32", "-o")
    code, seconds = _killed(_start(*arguments, tmp_path / "whole"), PATIENCE_S, signal.SIGKILL)
    assert code == 0
    folder = tmp_path / "killed"
    draws = random.Random(5)
    codes: list[int] = []
    positions = 0
    while codes[-1:] != [0]:
        number = draws.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        # Not without end: each start costs seconds.
        after_s = draws.uniform(0, 0.6 * seconds) if len(codes) < 4 else PATIENCE_S
        codes.append(_killed(_start(*arguments, folder), after_s, number)[0])
        positions += (folder / "profile.checkpoint").exists()
    of_signals = {-signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM, 130, 143}
    assert set(codes[:-1]) <= of_signals
    assert positions >= 1, codes
    found = {name: data for name, data in _files(folder).items() if not name.endswith(".part")}
    assert found == _files(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_counted(model: Path, text: Path, tmp_path: Path) -> None:
    text.write_text(TEXT * 100)
    folder = tmp_path / "out"
    process = _start("-m", model, "-f", text, "-c", "32", "-o", folder)
    checkpoint = folder / "profile.checkpoint"
    with process:
        until = time.monotonic() + PATIENCE_S
        while not checkpoint.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert re.search(rb"note: \d+ tokens are counted; the same command resumes there", stderr)
    assert sorted(_files(folder)) == ["profile.checkpoint"]
    # Another run does not go on with it, nor throws it away.
    other = tmp_path / "other.txt"
    other.write_text(OTHER)
    for arguments in (("-f", other), ("-f", text, "--tokens", "500"), ("-f", text, "-c", "16")):
        result = invoke("profile", "-m", model, "-o", folder, *arguments)
        assert_error(result, "profile.checkpoint belongs to a run with another recipe")
    assert sorted(_files(folder)) == ["profile.checkpoint"]


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_text(model: Path, tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import resource, sys
        from powerinfer.cli.main import main
        main(["profile", *sys.argv[1:]], standalone_mode=False)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """)

    def peak(times: int) -> int:
        path = tmp_path / f"{times}.txt"
        path.write_text(TEXT * times)
        command = [sys.executable, "-c", program, "-m", str(model), "-f", str(path)]
        done = subprocess.run(
            [*command, "-o", str(tmp_path / str(times))],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=True,
        )
        return int(done.stdout.splitlines()[-1])

    # Of both texts a piece is read whole, so that nothing else can differ.
    assert peak(1000) - peak(100) < 6 << 10  # KiB


def test_folders_of_others_are_left_alone(model: Path, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    torch.save(torch.ones(48), folder / "activation_0.pt")
    before = _files(folder)
    result = invoke("profile", "-m", model, "-f", text, "-o", folder)
    assert_error(result, "out: has counts that another program wrote, which would be lost: name")
    assert "-o" in result.stderr
    assert _files(folder) == before
    other = write_model(tmp_path / "other.gguf", TINY_MODELS["llama-relu"], seed=1)
    run_json("profile", "-m", other, "-f", text)
    before = _files(tmp_path / "activation")
    result = invoke("profile", "-m", model, "-f", text, "-o", tmp_path / "activation")
    assert_error(result, "activation: has the profile of another model")
    assert _files(tmp_path / "activation") == before
    (tmp_path / "activation" / "activation.json").write_text("{}")
    result = invoke("profile", "-m", model, "-f", text, "-o", tmp_path / "activation")
    assert_error(result, "activation.json: the activation profile cannot be used")


def test_what_cannot_be_profiled(model: Path, text: Path, tmp_path: Path) -> None:
    dense = write_model(tmp_path / "dense.gguf", TINY_MODELS["llama"])
    assert_error(invoke("profile", "-m", dense, "-f", text), "there is nothing to profile")
    assert_error(invoke("profile", "-f", text), "comes with the package", "-o")
    common = ("profile", "-m", model, "-f")
    assert_error(invoke(*common, tmp_path / "none.txt"), "none.txt: no such file")
    assert_error(invoke(*common, tmp_path), "expected a file of text")
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert_error(
        invoke(*common, short), "short.txt: too short", "tokens of text; expected at least"
    )
    wrong = tmp_path / "wrong.txt"
    wrong.write_bytes(TEXT.encode() + b"\xff")
    assert_error(invoke(*common, wrong), f"wrong.txt: byte {len(TEXT)} is not UTF-8")
    assert_error(invoke(*common, text, "-o", text), "text.txt")
    assert not (model.parent / "activation" / "activation.json").exists()


@pytest.mark.parametrize("name", ["profile.checkpoint", "activation_1.pt", "activation.json"])
def test_a_full_disk_is_one_line(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from powerinfer.calibration import window_pass
    from powerinfer.train.profile import profile

    monkeypatch.setattr(profile, "_SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(window_pass, "_BATCH_TOKENS", 500)
    reach_disk = os.fsync

    def reach_full_disk(descriptor: int) -> None:
        if name in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(errno.ENOSPC, "No space left on device")
        reach_disk(descriptor)

    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", reach_full_disk)
        result = invoke("profile", "-m", model, "-f", text, "-o", folder)
    assert_error(result, f"{name}: cannot write: No space left on device")
    assert not list(folder.glob(".*"))
    # With room again it ends as it would have.
    run_json("profile", "-m", model, "-f", text, "-o", folder)
    run_json("profile", "-m", model, "-f", text, "-o", tmp_path / "whole")
    assert _files(folder) == _files(tmp_path / "whole")


def test_without_torch_it_says_so_at_once(
    model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = invoke("profile", "-m", model, "-f", text)
    assert_error(result, "profile needs torch", "scripts/setup train", "WHEEL[train]")
    assert not (model.parent / "activation").exists()
