"""`chat` on a terminal: what is typed while an answer runs, and that the terminal stays whole."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerinfer.gguf import open_gguf, rewrite_metadata
from screen import Screen
from tiny_models import TINY_MODELS, write_model

pytestmark = pytest.mark.usefixtures("unmeasured_programs")

_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<system>Be kind.</system>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a chat template that has a system prompt of its own."""
    folder = tmp_path_factory.mktemp("models")
    plain = write_model(folder / "plain.gguf", TINY_MODELS["llama"])
    rewrite_metadata(open_gguf(plain), folder / "chat.gguf", {"tokenizer.chat_template": _TEMPLATE})
    return folder / "chat.gguf"


@contextmanager
def _answering(model: Path, state_folder: Path) -> Iterator[Screen]:
    """A chat whose answer runs until it is stopped."""
    flags = ("-m", str(model), "-c", "100000", "-n", "-1", "--ignore-eos")
    with Screen(state_folder, "chat", *flags, "--kernels", "reference") as screen:
        screen.wait_for(">")
        screen.type(b"hello\r")
        screen.wait_for_more(100)
        yield screen


def test_what_is_typed_while_an_answer_runs_waits_at_the_next_prompt(
    model: Path, tmp_path: Path
) -> None:
    """With its line ends and corrections; Ctrl-C stops the answer and leaves it."""
    with _answering(model, tmp_path) as screen:
        assert not screen.echoes
        screen.type(b"typed aheax\x7fd\rsecond line\r")
        screen.wait_for_more(100)
        screen.type(b"\x03")
        screen.wait_for("(stopped)")
        assert "typed" not in screen.text
        screen.wait_for("typed ahead")
        screen.wait_for("second line")
        # It was not sent, and can be edited: this makes a command of it that shows what is there.
        screen.type(b"\x15\x7f\x15/undo\r")
        screen.wait_for("(removed: hello)")
        screen.wait_for(">")
        screen.type(b"\x04")
        assert screen.exit_code() == 0
        assert screen.echoes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_in_an_answer_leaves_the_terminal_whole(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with _answering(model, tmp_path) as screen:
        assert not screen.echoes
        os.kill(screen.process.pid, number)
        code = screen.exit_code()
        assert code in (128 + number, -number)
        assert screen.echoes


def test_a_terminal_shows_template_limit_and_loop(model: Path, tmp_path: Path) -> None:
    """A penalty below 1 is a reward for what was said already."""
    flags = ("-m", str(model), "-c", "1000", "-n", "120", "--ignore-eos", "--temp", "0")
    with Screen(tmp_path, "chat", *flags, "--repeat-penalty", "0.01") as screen:
        screen.wait_for(">")
        screen.type(b"/system\r")
        screen.wait_for("of the model's chat template")
        screen.wait_for("Be kind.")
        # The loop is mentioned once.
        for _ in range(2):
            screen.wait_for(">")
            screen.type(b"hello\r")
            screen.wait_for("(cut after 120 tokens, the limit; /set n -1 lifts it)")
        screen.wait_for(">")
        screen.type(b"/exit\r")
        assert screen.exit_code() == 0
    assert screen.text.count("(the answer repeats the same") == 1
    assert screen.text.count("/set repeat-penalty 1.1") == 1
