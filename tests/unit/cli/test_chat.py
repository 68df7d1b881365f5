"""The command `chat` without a terminal: messages, commands, what it says on stderr."""

import errno
import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from command_line import assert_error, invoke
from powerinfer import PowerInferError
from powerinfer.cli.chat_commands import is_command, message_in, save_conversation
from powerinfer.engine.conversation import Conversation
from powerinfer.sampling.sampler import Sampler
from powerinfer.values import FloatArray


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the model; it answers every message with a number."""
    asked: list[str] = []

    def answered(self: Conversation, text: str) -> Generator[str]:
        asked.append(text)
        answer = f"answer {len(asked)}"
        self.messages += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": answer},
        ]
        yield answer

    monkeypatch.setattr(Conversation, "ask", answered)
    return asked


def test_chat_reads_lines_and_obeys_commands(tiny: Path) -> None:
    flags = ("chat", "-m", tiny, "-n", "4", "--seed", "1", "--ignore-eos")
    lines = "hello\n/stats\none \\\ntwo\n/clear\n/nonsense\n/exit\nnever read\n"
    result = invoke(*flags, stdin=lines)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) >= 2
    for part in ("decode 4 tokens", "(conversation cleared)", "no command /nonsense", "/help"):
        assert part in result.stderr
    ended = invoke(*flags, stdin="")
    assert (ended.exit_code, ended.stdout) == (0, "")


def test_chat_outlives_a_message_that_is_too_long(tiny: Path) -> None:
    flags = ("chat", "-m", tiny, "-n", "2", "-c", "40", "--ignore-eos", "--seed", "1")
    result = invoke(*flags, stdin="x" * 100 + "\nhi\n")
    assert "not answered: the prompt has" in result.stderr
    assert result.stdout.strip()
    assert_error(result, "1 message failed")


def test_chat_keeps_an_answer_that_ctrl_c_stopped(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its third token; /retry asks again for what was stopped."""
    num_sampled = 0
    sample = Sampler.sample

    def interrupted(self: Sampler, logits: FloatArray, token_ids: Sequence[int]) -> int:
        nonlocal num_sampled
        num_sampled += 1
        if num_sampled == 3:
            raise KeyboardInterrupt
        return sample(self, logits, token_ids)

    monkeypatch.setattr(Sampler, "sample", interrupted)
    flags = ("chat", "-m", tiny, "-n", "6", "--seed", "1", "--ignore-eos")
    saved = [tmp_path / name for name in ("stopped.json", "again.json")]
    result = invoke(*flags, stdin=f"one\n/save {saved[0]}\n/retry\n/save {saved[1]}\n")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("(stopped)") == 1
    stopped, again = (json.loads(each.read_text("utf-8"))["messages"] for each in saved)
    for messages in (stopped, again):
        assert [each["role"] for each in messages] == ["user", "assistant"]
        assert messages[0]["content"] == "one"
    assert again[1]["content"].startswith(stopped[1]["content"])
    assert len(again[1]["content"]) > len(stopped[1]["content"])


def test_ctrl_c_before_an_answer_begins_takes_the_message_back(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Conversation._encode
    num_encoded = 0

    def interrupted(self: Conversation, first: int = 0) -> list[int]:
        nonlocal num_encoded
        num_encoded += 1
        if num_encoded in (1, 3):
            raise KeyboardInterrupt
        return encode(self, first)

    monkeypatch.setattr(Conversation, "_encode", interrupted)
    saved = tmp_path / "talk.json"
    lines = f"never\n/retry\n/undo\none\ntwo\n/retry\n/save {saved}\n"
    result = invoke("chat", "-m", tiny, "-n", "4", "--ignore-eos", stdin=lines)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("(stopped before the answer began: the message was not sent)") == 2
    assert result.stderr.count("(there are no messages yet)") == 2
    messages = json.loads(saved.read_text("utf-8"))["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant"]
    assert messages[0]["content"] == "one"


def test_chat_says_when_it_forgets(tiny: Path) -> None:
    flags = ("chat", "-m", tiny, "-n", "2", "-c", "60", "--ignore-eos")
    result = invoke(*flags, stdin="the first message\nthe second one\nand a third\n")
    assert result.exit_code == 0
    assert "the oldest 2 messages were forgotten" in result.stderr


def test_what_was_forgotten_is_announced_once(tiny: Path) -> None:
    """Not again by /retry, though that looks anew for what fits; but after /clear."""
    flags = ("chat", "-m", tiny, "-n", "2", "-c", "60", "--ignore-eos")
    talk = "the first message\nthe second one\nand a third\n"
    once = invoke(*flags, stdin=talk).stderr.count("were forgotten")
    assert once >= 1
    assert invoke(*flags, stdin=talk + "/retry\n/retry\n").stderr.count("forgotten)") == once
    cleared = invoke(*flags, stdin=f"{talk}/clear\n{talk}").stderr
    assert cleared.count("were forgotten") == 2 * once


def test_what_is_a_command_and_what_a_message() -> None:
    for line in ("/help", "/set temp 0.2", "/save my file.txt", "/nonsense", "/Exit"):
        assert is_command(line), line
    for line in ("/etc/passwd is what?", "//help", "/* a comment */", "/", "/ help", "help", "1/2"):
        assert not is_command(line), line
    assert message_in("/etc/passwd is what?") == "/etc/passwd is what?"
    assert message_in("//help me") == "/help me"


def test_messages_may_begin_with_a_slash(tiny: Path, said: list[str]) -> None:
    invoke("chat", "-m", tiny, stdin="/etc/passwd is what?\n//clear it\n/clear\n")
    assert said == ["/etc/passwd is what?", "/clear it"]


def test_retry_and_undo(tiny: Path, said: list[str]) -> None:
    lines = "/undo\n/retry\none\ntwo\n/retry\n/undo\n/retry\n"
    result = invoke("chat", "-m", tiny, stdin=lines)
    assert said == ["one", "two", "two", "one"]
    assert result.stderr.count("(there are no messages yet)") == 2
    assert "(removed: two)" in result.stderr
    same = invoke("chat", "-m", tiny, "--seed", "1", stdin="one\n/retry\n")
    assert "with the same seed the answer is the same" in same.stderr
    same = invoke("chat", "-m", tiny, "--temp", "0", stdin="one\n/retry\n")
    assert "at temperature 0 the answer is the same" in same.stderr


def test_set_changes_the_answers_to_come(tiny: Path) -> None:
    lines = "/set temp 0\n/set -n 3\nhello\n/set max-tokens 5\n/retry\n/set\n"
    result = invoke("chat", "-m", tiny, "--ignore-eos", stdin=lines)
    assert result.exit_code == 0, result.output
    short, long = result.stdout.splitlines()
    assert long.startswith(short)
    assert len(long) > len(short)
    for part in ("cut after 3 tokens", "cut after 5 tokens", "(temp = 0", "(top-k = 40)"):
        assert part in result.stderr


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("/set tepm 1", ["sampling parameter 'tepm'", "Did you mean 'temp'"]),
        ("/set top_p 7", ["top-p: 7.0 is not in the range"]),
        ("/set temp warm", ["temp: 'warm' is not a valid number"]),
        ("/set seed abc", ["seed: 'abc' is not a valid whole number"]),
        ("/set ignore-eos maybe", ["ignore-eos: 'maybe' is neither on nor off"]),
        ("/set stop 'open", ["quotation mark is not closed"]),
        ("/set logprobs 3", ["sampling parameter 'logprobs'", "top-k"]),
        ("/set temp nan", ["temperature must be a finite number"]),
        ("/save", ["needs the name of a file"]),
        ("/save /none/talk.txt", ["/none/talk.txt: cannot write"]),
    ],
    ids=lambda value: str(value)[:16],
)
def test_a_command_that_fails_is_a_line_and_an_exit_code(
    tiny: Path, said: list[str], line: str, parts: list[str]
) -> None:
    result = invoke("chat", "-m", tiny, stdin=f"hello\n{line}\ngo on\n")
    assert said == ["hello", "go on"]
    reason, last = (each for each in result.stderr.splitlines() if each.startswith("error: "))
    for part in parts:
        assert part in reason
    assert last == "error: 1 command failed, see above"
    assert result.exit_code == 2


def test_set_knows_switches_texts_and_defaults(tiny: Path) -> None:
    lines = "/set ignore-eos on\n/set stop the end\n/set seed 5\n/set seed -1\n/set temp default\n"
    lines += "/set stop 'two words' END\n/set stop \"\"\n/set\n"
    result = invoke("chat", "-m", tiny, "--temp", "0.1", stdin=lines)
    assert result.exit_code == 0
    for part in (
        *("(ignore-eos = on)", "(stop = 'the end')", "(seed = 5)", "(seed = -1)"),
        *("(temp = 0.8)", "(stop = 'two words' 'END')", '(stop = "")'),
    ):
        assert part in result.stderr
    assert "logprobs" not in result.stderr


@pytest.mark.usefixtures("said")
def test_save_as_json_and_as_text(tiny: Path, tmp_path: Path) -> None:
    as_json, as_text = tmp_path / "my talk.json", tmp_path / "talk.txt"
    lines = f"/save {as_text}\nhello\nümlaut\n/save {as_json}\n/save {as_text}\n"
    result = invoke("chat", "-m", tiny, "--system", "be brief", stdin=lines)
    assert result.exit_code == 0, result.output
    assert f"(wrote 4 messages to {as_json})" in result.stderr
    wanted = [("system", "be brief"), ("user", "hello"), ("assistant", "answer 1")]
    wanted += [("user", "ümlaut"), ("assistant", "answer 2")]
    found = json.loads(as_json.read_text(encoding="utf-8"))["messages"]
    assert [(each["role"], each["content"]) for each in found] == wanted
    text = as_text.read_text(encoding="utf-8")
    assert text.startswith("System: be brief\n\nUser: hello\n\nAssistant: answer 1\n")
    assert sorted(tmp_path.iterdir()) == sorted([as_json, as_text])


HELLO = [{"role": "user", "content": "hello"}]


def test_save_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talk.txt"
    path.write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")

    def check() -> None:
        for taken in (path, tmp_path / "dangling", tmp_path):
            with pytest.raises(PowerInferError, match="already exists; name a new file"):
                save_conversation(taken, HELLO)
        assert path.read_text() == "mine"

    check()

    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", unsupported)
    check()
    save_conversation(tmp_path / "new.txt", HELLO)
    assert (tmp_path / "new.txt").read_text() == "User: hello\n"
    assert len(list(tmp_path.iterdir())) == 3


def test_save_removes_what_a_killed_save_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        save_conversation(tmp_path / "first.txt", HELLO)
    assert [path.suffix for path in tmp_path.iterdir() if path.name.startswith(".")] == [".part"]
    save_conversation(tmp_path / "second.txt", HELLO)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.txt", "second.txt"]


def test_a_model_without_a_template_is_announced(tiny: Path) -> None:
    assert "no chat template: it gets a plain dialogue" in invoke("chat", "-m", tiny).stderr
    embedded = invoke("chat")
    assert "the bundled model tells stories" in embedded.stderr
    assert "use -m for a model that can talk: `powerinfer chat " in embedded.stderr


@pytest.mark.slow
def test_the_embedded_model_goes_on_for_many_messages() -> None:
    """Its answers end, old messages are forgotten, and none is refused."""
    lines = "Once upon a time there was a fox.\n" + "Then a bear came along.\n" * 7
    result = invoke("chat", "--seed", "1", stdin=lines)
    assert result.exit_code == 0, result.stderr
    assert "messages were forgotten" in result.stderr
    assert "not answered" not in result.stderr
    assert "cut" not in result.stderr


def test_an_answer_without_a_word_is_explained(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerinfer.sampling.sampler.Sampler.sample", lambda *_: 2)
    result = invoke("chat", "-m", tiny, stdin="hello\n")
    assert "(the model gave an empty answer; /retry asks it again)" in result.stderr


def test_an_answer_ends_with_the_context_or_shifts_it(tiny: Path) -> None:
    common = ("chat", "-m", tiny, "-c", "60", "--ignore-eos", "--seed", "1")
    ended = invoke(*common, stdin="hello\nhello\n")
    assert ended.exit_code == 0
    assert ended.stderr.count("(cut: the context is full; a larger -c holds more)") == 2
    shifted = invoke(*common, "-n", "100", "--context-shift", stdin="hello\nhello\n")
    assert shifted.exit_code == 0
    assert shifted.stderr.count("cut after 100 tokens") == 2
