"""Counts of a profile: those of a plain forward pass in numpy, however the run was cut."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from numpy_firing import count_firing as count_in_numpy
from powerinfer.calibration import window_pass
from powerinfer.errors import PowerInferError
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model, uniform, with_predictors
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.placement.activation_record import Counted
from powerinfer.tokenizer import Tokenizer
from powerinfer.train.checkpoint import save_checkpoint
from powerinfer.train.profile.counting import ProfileRun, count_firing
from powerinfer.train.token_windows import TokenWindows, text_identity
from tiny_models import TINY_MODELS, write_model

TEXT = "Once upon a time there was a little dog. It had a red ball, and it liked to play.\n" * 12
NAMES = (
    "llama-relu",
    "llama-relu2",
    "llama-drelu-transposed",
    "bamboo",
    "opt",
    "arcee",
    "mixtral-drelu-transposed",
    "smallthinker",
)


def _model(folder: Path, name: str = "llama-relu") -> tuple[Model, Path]:
    path = write_model(folder / f"{name}.gguf", TINY_MODELS[name])
    model = load_model(open_gguf(path), ReferenceOps())
    return with_predictors(model, uniform("exact", model.config.num_layers), name="exact"), path


def _windows(path: Path, texts: list[Path], window: int = 32) -> TokenWindows:
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    return TokenWindows(
        texts, lambda text: tokenizer.encode(text, add_bos=False), window, tokenizer.bos_id
    )


def _run(model: Model, windows: TokenWindows, folder: Path, limit: int | None = None) -> ProfileRun:
    counted = Counted("model", "relu", "text", windows._window, limit)
    return ProfileRun(model, windows, counted, folder / "profile.checkpoint")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_a_plain_forward_pass(tmp_path: Path, text: Path, name: str) -> None:
    model, path = _model(tmp_path, name)
    run = _run(model, _windows(path, [text]), tmp_path)
    while run.advance():
        pass
    windows = list(_windows(path, [text]))
    assert run.num_tokens == 32 * len(windows) > 500
    wanted = count_in_numpy(open_gguf(path), [window.tolist() for window in windows])
    profile = run.profile(("text.txt",))
    assert profile.counts.dtype == np.int64
    np.testing.assert_array_equal(profile.counts, wanted)
    # Neither nothing nor everything fires, and of experts each has its own neurons.
    assert 0 < profile.counts.sum() < 0.9 * profile.counts.size * run.num_tokens
    record = profile.record
    assert record.fired == tuple(wanted.sum(axis=1).tolist())
    assert record.num_neurons == profile.counts.shape[1] == model.config.num_neurons
    assert record.num_experts == max(1, TINY_MODELS[name].num_experts)


def test_the_first_token_of_a_window_counts(tmp_path: Path) -> None:
    model, _ = _model(tmp_path)
    ids = np.array([[1, 70, 80, 90]], np.int32)
    first = count_firing(model, ids[:, :1])
    assert first.sum() > 0
    assert (count_firing(model, ids) >= first).all()


@given(data=st.data())
def test_any_cut_gives_the_same_counts(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("profile")
    model, path = _model(folder)
    text = folder / "text.txt"
    text.write_text(TEXT)
    limit = data.draw(st.none() | st.integers(32, 2000))
    whole = _run(model, _windows(path, [text]), folder, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_pass, "_BATCH_TOKENS", 96)
        while whole.advance():
            pass
        run = _run(model, _windows(path, [text]), folder, limit)
        while True:
            patch.setattr(window_pass, "_BATCH_TOKENS", data.draw(st.sampled_from([32, 64, 300])))
            if not run.advance():
                break
            if data.draw(st.booleans()):
                run.save()
                # What it counts from here on is lost.
                if data.draw(st.booleans()):
                    run.advance()
                run = _run(model, _windows(path, [text]), folder, limit)
    np.testing.assert_array_equal(run.profile(()).counts, whole.profile(()).counts)
    assert run.num_tokens == whole.num_tokens
    assert limit is None or run.num_tokens <= limit


def test_more_tokens_than_the_text_has(tmp_path: Path, text: Path) -> None:
    model, path = _model(tmp_path)
    some = _run(model, _windows(path, [text]), tmp_path, limit=10**9)
    shares = []
    while some.advance():
        shares.append(some.done_share)
    every = _run(model, _windows(path, [text]), tmp_path)
    while every.advance():
        pass
    np.testing.assert_array_equal(some.profile(()).counts, every.profile(()).counts)
    assert shares == sorted(shares)
    assert 0 < shares[0] <= shares[-1] <= 1


def test_checkpoints_of_others_and_damaged_ones(tmp_path: Path, text: Path) -> None:
    model, path = _model(tmp_path)
    run = _run(model, _windows(path, [text]), tmp_path)
    run.advance()
    run.save()
    with pytest.raises(PowerInferError, match="belongs to a run with another recipe"):
        _run(model, _windows(path, [text]), tmp_path, limit=64)
    checkpoint = tmp_path / "profile.checkpoint"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:200])
    with pytest.raises(PowerInferError, match="is no checkpoint"):
        _run(model, _windows(path, [text]), tmp_path)
    for state in ({}, {"counts": 3, "num_tokens": 1, "position": {}}):
        save_checkpoint(checkpoint, run._recipe, state)
        with pytest.raises(PowerInferError, match="is no checkpoint of a profile"):
            _run(model, _windows(path, [text]), tmp_path)


def test_other_texts_have_other_identities(tmp_path: Path, text: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("dog", "cat"))
    assert text_identity([text]) != text_identity([other])
