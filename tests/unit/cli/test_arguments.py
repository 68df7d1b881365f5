"""What users of other programs type: their flags, their names of models."""

from pathlib import Path

import click
import pytest

from command_line import assert_error, invoke
from powerinfer import LLM, GGUFError
from powerinfer.cli.flags.foreign_flags import _ADVICE
from powerinfer.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["-ngl", "33"], ["no option -ngl", "--vram-budget"]),
        (["--n-gpu-layers", "33"], ["--vram-budget"]),
        (["--n_gpu_layers=33"], ["--vram-budget"]),
        (["-hf", "ORG/NAME"], ["no option -hf", "huggingface.co", "-m"]),
        (["-cnv"], ["powerinfer chat"]),
        (["-fa"], ["no option -fa", "leave it out"]),
        (["-ub", "64"], ["batches of 512"]),
        (["-ctk", "q8_0"], ["--kv-type"]),
        (["--mlock"], ["--no-mmap"]),
        (["--temp", "0", "-sys", "Be brief."], ["--system TEXT", "run --chat"]),
    ],
    ids=lambda value: value[0],
)
def test_flags_of_llama_cpp_get_advice(arguments: list[str], parts: list[str]) -> None:
    assert_error(invoke("run", "-p", "hello", *arguments), *parts)
    assert_error(invoke("chat", *arguments), *parts)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run", "-p", "a", "--system", "Be brief."], "give --chat too"),
        (["run", "--grammar-file", "x"], "--grammar FILE"),
        (["run", "--lora", "x"], "nothing like it"),
        (["run", "--repeat_penalty", "1.1"], "Did you mean --repeat-penalty?"),
        (["run", "--top_k=5"], "Did you mean --top-k?"),
        (["run", "--tepm", "0"], "Did you mean --temp?"),
        (["bench", "-p", "512"], "use --prefill N"),
        (["bench", "-n", "128"], "use --decode N"),
        (["bench", "-r", "3"], "use --repeats N"),
        (["run", "-r", "User:"], "use --stop TEXT"),
        (["tokenize", "-p", "Hello"], "needs no option"),
        (["chat", "-p", "Hello"], "`powerinfer run` takes a prompt"),
        (
            ["chat", "llama3"],
            "'llama3' is no model: expected a file or a name that",
        ),
        (["chat", "hi there"], "`powerinfer run` takes a prompt"),
        (["server"], "use `powerinfer serve`"),
        (["ls"], "`powerinfer list` shows"),
        (["help"], "powerinfer --help"),
    ],
    ids=lambda value: " ".join(value)[:20],
)
def test_what_is_typed_elsewhere_gets_advice(arguments: list[str], part: str) -> None:
    result = invoke(*arguments)
    assert_error(result, part)
    assert "--mmap" not in result.stderr


@pytest.mark.parametrize("arguments", [["--sixteen", "Hello"], ["--wibble=3"], ["-q"]])
def test_only_near_options_are_suggested(arguments: list[str]) -> None:
    result = invoke("run", *arguments)
    assert_error(result, f"no option {arguments[0].partition('=')[0]}", "run --help")
    assert "Did you mean" not in result.stderr
    # It is the option that is wrong, not what follows.
    assert_error(invoke("chat", *arguments), "no option")


@pytest.mark.parametrize(
    "word", ["llama3", "Qwen2.5-Coder:7b", "nobody/Llama-3", "mine:latest", "deepseek-r1"]
)
def test_a_prompt_that_looks_like_a_model_is_noted(word: str) -> None:
    result = invoke("run", word, "-n", "0")
    assert result.exit_code == 0
    assert f"{word!r} is taken as the prompt; models are named with -m" in result.stderr
    assert "taken as" not in invoke("run", "-p", word, "-n", "0").stderr


@pytest.mark.parametrize("word", ["Hello", "Q:", "optimal", "12:30", "", "llamas live here", "a/b"])
def test_other_prompts_are_not(word: str) -> None:
    assert "taken as" not in invoke("run", word, "-n", "0").stderr


def test_advice_recommends_options_that_there_are() -> None:
    shown = "".join(invoke(name, "--help").stdout for name in ("run", "chat", "bench"))
    shown += invoke("--help").stdout
    words = {word.strip(".,;:`") for text in _ADVICE.values() for word in text.split()}
    flags = {word for word in words if word.startswith("-") and len(word) > 1}
    assert {"--vram-budget", "--stop", "-m"} <= flags
    assert [flag for flag in flags if flag not in shown] == []


def test_no_flag_of_ours_is_in_the_table() -> None:
    """Advice must never hide an option that exists."""
    foreign = {name for names in _ADVICE for name in names.split()}
    commands = main.list_commands(click.Context(main))
    assert not foreign & set(commands)
    for name in commands:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        # `serve` takes flags of llama-server that mean nothing, and does not show them.
        shown = [each for each in command.params if not getattr(each, "hidden", False)]
        ours = {name for each in shown for name in (*each.opts, *each.secondary_opts)}
        assert not foreign & (ours | {f"{name}:{each}" for each in ours}), command.name


def test_an_option_in_the_place_of_a_value_is_noticed() -> None:
    assert_error(
        invoke("calibrate", "--zeros", "-f", "text.txt"), "--zeros needs a value before -f"
    )
    assert_error(invoke("bench", "--zeros", "text.txt"), "no option --zeros")
    assert_error(invoke("calibrate", "--zeros", "0.5", "text.txt"), "unexpected argument")


def test_nothing_but_a_number_follows_a_short_option_directly(tmp_path: Path) -> None:
    """Each of these would be read as an option with a value, or as help."""
    assert_error(invoke("run", "-fprompt.txt"), "no option -fprompt.txt", "write -f prompt.txt")
    assert_error(invoke("run", "-mmodel.gguf"), "write -m model.gguf")
    assert_error(invoke("run", "-ehello"), "no option -ehello")
    assert_error(invoke("inspect", "-help"), "no option -help")
    assert_error(invoke("-hf", "ORG/NAME"), "no option -hf", "huggingface.co")
    report = invoke("run", "-p", "Hi", "-n0", "-c64", "-s-1")
    assert report.exit_code == 0, report.output


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("-t=4", "write -t 4"),
        ("-n=-1", "write -n -1"),
        ("-m=my model.gguf", "write -m 'my model.gguf'"),
        ("-p=a=b", "write -p a=b"),
        ("-f=", "write -f VALUE"),
        ("-fa=b.txt", "leave it out"),
    ],
)
def test_a_short_option_with_an_equals_sign(argument: str, advice: str) -> None:
    result = invoke("run", argument)
    assert_error(result, "no option -")
    assert result.stderr.strip().endswith(advice)


def test_values_may_look_like_options() -> None:
    assert invoke("run", "-n", "0", "-p", "-ngl").stdout == "-ngl"
    assert invoke("run", "-n", "0", "--prompt=-hf").stdout == "-hf"
    assert invoke("tokenize", "--", "-ngl").exit_code == 0


def test_options_before_the_command_are_sent_behind_it() -> None:
    assert_error(invoke("-m", "model.gguf", "-p", "Hi"), "-m goes after a command", "run -m")
    assert invoke("--version").exit_code == invoke("-h").exit_code == 0


@pytest.mark.parametrize(
    "name",
    [
        *("llama3", "llama3:8b", "Nobody/Llama-3-GGUF"),
        *("https://a.b/c//d.gguf", "hf.co/nobody/Llama:Q4_K_M", "HuggingFace.co/nobody/Llama"),
    ],
)
def test_names_that_other_programs_would_download(name: str) -> None:
    assert_error(invoke("run", "-m", name, "-p", "a"), f"{name}: ", "hf:ORG/NAME", "(-m)")
    assert_error(invoke("inspect", name), f"{name}: ", "hf:ORG/NAME")
    with pytest.raises(GGUFError, match=r"hf:ORG/NAME.*, and name its path \(model\)"):
        LLM(name)


@pytest.mark.parametrize("name", ["hf:llama3", "hf:a/b/c", "hf://a/b"])
def test_references_with_mistakes_are_no_files(name: str) -> None:
    for arguments in (["run", "-p", "a", "-m", name], ["inspect", name], ["pull", name]):
        assert_error(invoke(*arguments), f"{name}: ", "expected hf:ORG/NAME[:QUANT][@REVISION]")


def test_pull_says_what_models_are_called() -> None:
    assert_error(
        invoke("pull", "llama3"),
        "llama3: not in the catalogue; expected a name that is, such as smollm2, ",
        "hf:ORG/NAME[:QUANT][@REVISION] or pypi:NAME==VERSION/FILE",
    )
    assert_error(invoke("download", "llama3"), "powerinfer pull hf:ORG/NAME")


@pytest.mark.parametrize("name", ["no.gguf", "models/no.gguf", "/no/where", "~/no"])
def test_a_missing_path_is_just_missing(name: str) -> None:
    result = invoke("run", "-m", name, "-p", "a")
    assert_error(result, f"{name}: no such file")
    assert "huggingface" not in result.stderr


def test_a_file_may_be_called_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("llama3", "hf:model"):
        (tmp_path / name).write_text("this is no model")
        result = invoke("run", "-m", name, "-p", "a")
        assert_error(result, name)
        assert "huggingface" not in result.stderr
