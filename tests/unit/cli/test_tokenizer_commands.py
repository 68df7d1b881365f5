"""`powerinfer tokenize` and `powerinfer detokenize`, on a file with nothing but a vocabulary."""

import json
from pathlib import Path

import pytest

from command_line import invoke
from powerinfer.gguf import write_gguf
from tokenizer_metadata import small_byte_level

END = 264


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("vocabulary") / "small.gguf"
    metadata = small_byte_level(pre="gpt-2", bos_token_id=END)
    write_gguf(path, {"general.architecture": "llama", **metadata}, [])
    return str(path)


def test_ids_are_one_line(model: str) -> None:
    for flags in ([], ["--ids"]):
        result = invoke("tokenize", "-m", model, *flags, "hello world")
        assert (result.exit_code, result.stdout) == (0, "259 262 263\n")
    assert invoke("tokenize", "-m", model, "").stdout == "\n"


def test_bos_and_special_tokens_only_where_asked_for(model: str) -> None:
    assert invoke("tokenize", "-m", model, "--bos", "hello").stdout == f"{END} 259\n"
    assert invoke("tokenize", "-m", model, "--parse-special", "<|end|>").stdout == f"{END}\n"
    assert str(END) not in invoke("tokenize", "-m", model, "<|end|>").stdout.split()


def test_pieces_are_readable(model: str) -> None:
    result = invoke("tokenize", "-m", model, "--bos", "--pieces", "hello worldé")
    assert result.stdout.splitlines() == [
        '    264  "<|end|>"',
        '    259  "hello"',
        '    262  " wor"',
        '    263  "ld"',
        "    195  <0xC3>",
        "    169  <0xA9>",
    ]


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_any_bytes_go_through_both_commands(
    model: str, tmp_path: Path, json_flag: list[str]
) -> None:
    content = bytes(range(256)) + b"hello \xff\n"
    path = tmp_path / "bytes"
    path.write_bytes(content)
    from_file = invoke("tokenize", "-m", model, "-f", str(path), *json_flag)
    from_stdin = invoke("tokenize", "-m", model, *json_flag, stdin=content)
    assert from_file.stdout == from_stdin.stdout
    back = invoke("detokenize", "-m", model, stdin=from_file.stdout_bytes)
    assert back.stdout_bytes == content
    path.write_bytes(from_file.stdout_bytes)
    assert invoke("detokenize", "-m", model, "-f", str(path)).stdout_bytes == content


def test_json(model: str) -> None:
    assert json.loads(invoke("tokenize", "-m", model, "--json", "hello").stdout) == {"ids": [259]}
    both = invoke("tokenize", "-m", model, "--json", "--pieces", "hello\u00e9")
    found = json.loads(both.stdout)
    assert found["pieces"][0] == "hello"
    assert len(found["pieces"]) == len(found["ids"])
    found = json.loads(invoke("detokenize", "-m", model, "--json", "259", "195").stdout)
    assert found == {"text": "hello\ufffd"}


def test_detokenize_hides_control_tokens_unless_asked_for(model: str) -> None:
    assert invoke("detokenize", "-m", model, f"{END},259").stdout == "hello"
    assert invoke("detokenize", "-m", model, "--special", str(END), "259").stdout == "<|end|>hello"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenize", "-m", "no-such.gguf", "x"], "no-such.gguf"),
        (["tokenize", "-f", "no-such.txt"], "no-such.txt"),
        (["tokenize", "-f", "a", "b"], "both given"),
        (["detokenize", "x"], "'x' is not a token id"),
        (["detokenize", "1.5"], "not a token id"),
        (["detokenize", "9" * 5000], "not a token id"),
        (["detokenize", "{bad"], "not valid JSON"),
        (["detokenize", '{"id": [1]}'], "no list of ids"),
        (["detokenize", '["a"]'], "not a token id"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_ids_outside_the_vocabulary(model: str) -> None:
    result = invoke("detokenize", "-m", model, "266")
    assert result.exit_code == 2
    assert "token id 266 is outside the vocabulary, 0 to 265" in result.stderr
