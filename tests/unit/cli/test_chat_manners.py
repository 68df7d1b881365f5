"""Templates, limits and loops: what `chat` and `run` say of them."""

import errno
import os
import pty
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit import PromptSession

from command_line import assert_error, invoke, run_json
from powerinfer import LLM, SamplingParams
from powerinfer.cli.chat_answers import IN_CHAT, LoopNotice
from powerinfer.cli.chat_input import chat_input, messages
from powerinfer.cli.hidden_typing import hidden_typing
from powerinfer.cli.model import open_llm
from powerinfer.engine.conversation import Conversation
from powerinfer.gguf import open_gguf, rewrite_metadata
from powerinfer.sampling.sampler import Sampler

TEMPLATE = (
    "{{ bos_token }}"
    "{% if messages[0].role != 'system' %}<system>Be kind.\nAlways\x07.</system>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}\n"
)


@pytest.fixture(scope="module")
def with_template(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "chat.gguf"
    rewrite_metadata(open_gguf(tiny), path, {"tokenizer.chat_template": TEMPLATE})
    return path


def test_run_says_that_it_completes_raw_text(with_template: Path, tiny: Path) -> None:
    note = "note: `run` completes raw text; `run --chat` or `powerinfer chat` applies this model's"
    for arguments in ((), ("--json",)):
        result = invoke("run", "-m", with_template, "-p", "a", "-n", "1", *arguments)
        assert result.stderr.count(note) == 1
    assert note not in invoke("run", "-m", tiny, "-p", "a", "-n", "1").stderr
    assert note not in invoke("run", "-m", with_template, "--chat", "a", "-n", "1").stderr


def test_run_chat_answers_by_the_template(with_template: Path) -> None:
    common = ("run", "-m", with_template, "-n", "8", "--temp", "0")
    written = "<system>Be brief.</system><user>hello</user>"
    raw = run_json(*common, "-p", written)
    answered = run_json(*common, "--chat", "--system", "Be brief.", "hello")
    assert answered["token_ids"] == raw["token_ids"]
    assert answered["prefill_tokens"] == raw["prefill_tokens"]
    shown = invoke(*common, "--chat", "--system", "Be brief.", "hello")
    assert shown.stdout == answered["text"].lstrip()
    assert "(cut after 8 tokens, the limit; -n -1 lifts it)" in shown.stderr


def test_run_chat_of_the_bundled_model_goes_on_with_a_story() -> None:
    common = ("run", "-n", "8", "--temp", "0")
    result = invoke(*common, "--chat", "Once upon a time")
    plain = invoke(*common, "--no-display-prompt", "Once upon a time")
    assert result.stdout == plain.stdout.lstrip()
    assert "the bundled model tells stories" in result.stderr


def test_a_system_message_needs_chat(tiny: Path) -> None:
    assert_error(invoke("run", "-m", tiny, "-p", "a", "--system", "b"), "give --chat too")


def test_system_shows_and_sets_the_system_prompt(with_template: Path, tiny: Path) -> None:
    lines = "/system\n/system Be brief.\n/system default\n"
    result = invoke("chat", "-m", with_template, stdin=lines)
    own = (
        "(the system prompt, of the model's chat template; /system TEXT sets another:)\n"
        "Be kind.\nAlways\\x07.\n"
    )
    given = "(the system prompt, as given with --system or /system:)\nBe brief.\n"
    assert own + given + own in result.stderr
    asked = invoke("chat", "-m", with_template, "--system", "Be brief.", stdin="/system\n")
    assert given in asked.stderr
    for arguments in (("-m", tiny), ()):
        none = invoke("chat", *arguments, stdin="/system\n")
        assert "(no system prompt; /system TEXT sets one)" in none.stderr


def test_system_counts_for_the_answers_to_come(with_template: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.txt"
    own = tmp_path / "own.txt"
    lines = f"hello\n/save {own}\n/system Be brief.\nhello\n/save {saved}\n"
    result = invoke("chat", "-m", with_template, "-n", "1", stdin=lines)
    assert result.exit_code == 0
    assert own.read_text().startswith("System: Be kind.\nAlways\x07.\n\nUser: hello\n")
    assert saved.read_text().startswith("System: Be brief.\n")


LOOP = "repeats the same token; Ctrl-C stops it; what helps: "


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (("chat",), f"(the answer {LOOP}/set repeat-penalty 1.1, a higher /set temp or another /s"),
        (("run", "--chat", "hello"), f"(the answer {LOOP}--repeat-penalty 1.1, a higher --temp or"),
        (("run", "-p", "hello"), f"(the text {LOOP}--repeat-penalty 1.1 or a higher --temp)"),
        (("run", "-p", "hello", "--json"), f"(the text {LOOP}--repeat-penalty 1.1 or a higher"),
    ],
)
def test_a_loop_is_noticed_once_and_when_it_happens(
    with_template: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], advice: str
) -> None:
    """The text would go on for ever; it is interrupted at its 150th token."""
    ids = iter([70] * 149)

    def sample(*_: object) -> int:
        try:
            return next(ids)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(Sampler, "sample", sample)
    endless = ("-m", with_template, "-n", "-1", "-c", "128", "--context-shift")
    result = invoke(*command, *endless, stdin="hello\n")
    assert result.stderr.count("repeats the same") == 1
    assert advice in result.stderr
    assert "repeats the same" not in result.stdout


def test_a_loop_is_noticed_once_in_a_chat(
    with_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "sample", lambda *_: 70)
    result = invoke("chat", "-m", with_template, "-n", "97", stdin="hello\nhello\n")
    assert result.stderr.count("repeats the same") == 1
    one, _, other = result.stdout.partition("\n")
    assert one == other.rstrip("\n")


def test_a_loop_in_an_unfinished_line_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for end, shown in (("a", "\n(the answer"), ("\n", "(the answer")):
        pieces = LoopNotice(IN_CHAT).watch(iter([end] * 33), lambda count: [7] * count)
        assert list(pieces) == [end] * 33
        assert capsys.readouterr().err.startswith(shown)


def test_what_is_typed_while_a_model_loads_is_kept(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []

    @contextmanager
    def typing_kept(_: object) -> Iterator[None]:
        kept.append(True)
        yield
        kept.append(False)

    def opening(*arguments: Any, **options: Any) -> Any:
        assert kept == [True]
        return open_llm(*arguments, **options)

    monkeypatch.setattr(type(chat_input()), "typing_kept", typing_kept)
    monkeypatch.setattr("powerinfer.cli.model.open_llm", opening)
    result = invoke("chat", "-m", tiny, stdin="/exit\n")
    assert result.exit_code == 0
    assert kept == [True, False]


def test_an_answer_has_a_limit(tiny: Path) -> None:
    result = invoke("chat", "-m", tiny, stdin="/set n\n/set n 3\n/set n default\n")
    assert result.stderr.count("(max-tokens = 1024)") == 2


def test_inspect_prints_the_whole_template(with_template: Path, tiny: Path) -> None:
    assert invoke("inspect", "--chat-template", with_template).stdout == TEMPLATE
    assert_error(invoke("inspect", "--chat-template", tiny), "tiny.gguf has no chat template")
    for other in ("--tensors", "--json"):
        result = invoke("inspect", "--chat-template", other, tiny)
        assert_error(result, "--chat-template prints the template alone")
    assert_error(invoke("inspect", "--chat-template", "--machine"), "leave it or --chat-template")


@pytest.fixture
def keyboard() -> Iterator[tuple[int, int]]:
    """Two ends of a terminal: where keys are typed, and where a program reads them."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def terminal(keyboard: tuple[int, int]) -> int:
    return keyboard[1]


def _shows(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def test_a_terminal_shows_what_is_typed_after_an_error(terminal: int) -> None:
    before, handler = termios.tcgetattr(terminal), signal.getsignal(signal.SIGTSTP)
    with pytest.raises(ValueError, match="wrong"), hidden_typing(terminal):
        assert not _shows(terminal)
        raise ValueError("wrong")
    assert termios.tcgetattr(terminal) == before
    assert signal.getsignal(signal.SIGTSTP) == handler


def test_a_stopped_program_shows_what_is_typed(
    keyboard: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-Z stops it; in the foreground again, it hides that again.

    What was typed before is gone: the shell would take it for a command.
    """
    outer, terminal = keyboard
    seen: list[object] = []
    send = signal.raise_signal

    def stopped(number: int) -> None:
        assert not select.select([terminal], [], [], 0)[0]
        seen.append((number, _shows(terminal), signal.getsignal(number)))

    with hidden_typing(terminal):
        monkeypatch.setattr(signal, "raise_signal", stopped)
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
        os.write(outer, b"typed")
        select.select([terminal], [], [])
        send(signal.SIGTSTP)
        assert not _shows(terminal)
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
        send(signal.SIGTSTP)
        assert _shows(terminal)
    assert seen == [(signal.SIGTSTP, True, signal.SIG_DFL)] * 2


def test_a_chat_ends_where_its_terminal_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt(*_given: object, **_options: object) -> str:
        raise termios.error(errno.EIO, "Input/output error")

    monkeypatch.setattr(PromptSession, "prompt", prompt)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert list(messages(chat_input())) == []


def test_a_file_in_place_of_a_terminal_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "file").open("wb") as file, hidden_typing(file.fileno()):
        pass

    def refused(*_: object) -> None:
        raise termios.error(errno.EIO, "gone")

    ours, theirs = pty.openpty()
    monkeypatch.setattr(termios, "tcsetattr", refused)
    with hidden_typing(theirs):
        os.close(ours)
    os.close(theirs)


def test_a_conversation_has_the_system_message_that_was_set_last(tiny: Path) -> None:
    with LLM(tiny, kernels="reference") as llm:
        talk = Conversation(llm, SamplingParams(max_tokens=1), system="one")
        assert (talk.system, talk.builtin_system) == ("one", None)
        talk.system = ""
        assert talk.system is None
        assert talk.transcript == []
