"""Tools and reasoning in chats: prompts and answers of models with well-known templates."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client import Api, events, running_api
from chat_tokenizers import chat_tokenizer
from fake_engine import FakeEngine, Script
from powerinfer.serve.chat.deltas import PlainOutput
from powerinfer.serve.chat.reasoning import ReasoningOutput, reasoning_marks
from template_cases import TEMPLATES

QWEN = "Qwen-Qwen3-0.6B"
GPT_OSS = "openai-gpt-oss-120b"
MISTRAL = "Mistral-Small-3.2-24B-Instruct-2506"
NEMO = "mistralai-Mistral-Nemo-Instruct-2407"
LLAMA = "meta-llama-Llama-3.1-8B-Instruct"
QWEN35, CODER = "Qwen3.5-4B", "Qwen3-Coder"
# It ends the prompt within reasoning.
OPENING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "assistant: <think>\n{# </think> #}"
)


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"zone": {"type": "string"}}}
    function = {"name": name, "description": f"Tells the {name}", "parameters": parameters}
    return {"type": "function", "function": function}


CLOCK, DATE = tool("clock"), tool("date")
NAMED = {"type": "function", "function": {"name": "clock"}}


def chat(
    template: str, script: Script, tools: list[dict[str, Any]] | None = None, **fields: Any
) -> tuple[dict[str, Any], str, Api]:
    """The choice that is given, and the prompt."""
    fake = FakeEngine(script, context_length=16384)
    body = {"messages": [{"role": "user", "content": "Time?"}], "tools": tools, **fields}
    with running_api(tokenizer=chat_tokenizer(template), fake=fake) as api:
        answer = api.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        (handle,) = fake.submitted
        prompt = api.model.tokenizer.decode(handle.request.prompt_ids, skip_special=False)
        return answer.json()["choices"][0], prompt, api


def calls(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    listed = choice["message"].get("tool_calls", [])
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in listed]


@pytest.mark.parametrize(
    ("template", "script"),
    [
        (QWEN, ['<tool_call>\n{"name": "clock", "arguments": {"zone": "CET"}}\n</tool_call>']),
        (LLAMA, ['{"name": "clock", "parameters": {"zone"', ': "CET"}}']),
        (MISTRAL, ["[TOOL_CALLS]", "clock", "[ARGS]", '{"zone": "CET"}']),
        (NEMO, ["[TOOL_CALLS]", '[{"name": "clock", "arguments": {"zone": "CET"}}]']),
        (
            GPT_OSS,
            [
                "<|channel|>analysis<|message|>Which?<|end|><|start|>assistant<|channel|>",
                'commentary to=functions.clock <|constrain|>json<|message|>{"zone": "CET"}',
            ],
        ),
        (
            CODER,
            ["<tool_call>\n<function=clock>\n<parameter=zone>\nC", "ET\n</parameter>\n</function>"],
        ),
        ("LFM2", ["<|tool_call_start|>", '[clock(zone="CET', '")]', "<|tool_call_end|>"]),
        ("LFM2.5", ["<|tool_call_start|>", "[clock(zone='CET')]", "<|tool_call_end|>"]),
        ("olmoe", ['{"name": "clock", "arguments": {"zone": "CET"}}']),
    ],
)
def test_calls_of_models(template: str, script: list[str]) -> None:
    choice, prompt, _ = chat(template, script, [CLOCK, DATE])
    assert "Tells the clock" in prompt
    assert calls(choice) == [("clock", {"zone": "CET"})]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    reasoning = "Which?" if template == GPT_OSS else None
    assert choice["message"].get("reasoning_content") == reasoning
    # Without tools the same text is an answer, but for marks of gpt-oss.
    if template != GPT_OSS:
        choice, prompt, _ = chat(template, script, [CLOCK], tool_choice="none")
        assert "Tells the clock" not in prompt
        assert choice["message"]["content"] == "".join(script)


def test_a_form_that_nothing_reads_is_not_shown() -> None:
    unread = (
        "{% for tool in tools or [] %}<tool_call>NAME<arg_key>{{ tool.function.name }}{% endfor %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    choice, prompt, _ = chat(unread, ['{"name": "clock", "arguments": {}}'], [CLOCK])
    assert "<arg_key>" not in prompt
    assert prompt.count("Tells the clock") == 1
    assert calls(choice) == [("clock", {})]


@pytest.mark.parametrize(
    ("template", "tools", "choice", "end", "script"),
    [
        (QWEN, [CLOCK, DATE], NAMED, "<tool_call>\n", '{"name":"clock","arguments":{}}'),
        (QWEN, [CLOCK, DATE], "required", "<tool_call>\n", '{"name":"date","arguments":{}}'),
        (LLAMA, [CLOCK], "required", "<|end_header_id|>\n\n", '{"name":"clock","parameters":{}}'),
        (MISTRAL, [CLOCK], "required", "[TOOL_CALLS]clock[ARGS]", "{}"),
        (MISTRAL, [CLOCK, DATE], "required", "[TOOL_CALLS]", '[{"name":"date","arguments":{}}]'),
        (MISTRAL, [CLOCK, DATE], NAMED, "[TOOL_CALLS]clock[ARGS]", "{}"),
        (NEMO, [CLOCK], "required", "[TOOL_CALLS]", '[{"name":"clock","arguments":{}}]'),
        (GPT_OSS, [CLOCK, DATE], NAMED, "to=functions.clock <|constrain|>json<|message|>", "{}"),
        (GPT_OSS, [CLOCK, DATE], "required", "<|message|>", '{"name":"date","arguments":{}}'),
        (
            QWEN35,
            [CLOCK, DATE],
            "required",
            "<think>\n\n</think>\n\n<tool_call>\n<function=",
            "date>\n</function>",
        ),
        (CODER, [CLOCK, DATE], NAMED, "<tool_call>\n<function=", "clock>\n</function>"),
        ("LFM2", [CLOCK, DATE], "required", "assistant\n<|tool_call_start|>[", "date()]"),
        ("LFM2.5", [CLOCK], "required", "assistant\n<|tool_call_start|>[", "clock()]"),
        ("olmoe", [CLOCK], "required", "<|assistant|>\n", '{"name":"clock","arguments":{}}'),
        (
            OPENING,
            [CLOCK],
            "required",
            "<think>\n\n</think>\n\n",
            '{"name":"clock","arguments":{}}',
        ),
    ],
)
def test_a_call_that_must_be_made(
    template: str, tools: list[dict[str, Any]], choice: Any, end: str, script: str
) -> None:
    made, prompt, api = chat(template, list(script), tools, tool_choice=choice)
    assert prompt.endswith(end)
    assert calls(made) == [("date" if "date" in script else "clock", {})]
    assert made["message"]["content"] is None
    params = api.fake.submitted[0].request.params
    if params.grammar is not None:
        assert ('"date' in params.grammar) == (len(tools) == 2 and choice != NAMED)
        return
    schema = json.loads(str(params.json_schema))
    assert schema["type" if len(tools) == 1 or choice == NAMED else "$defs"]


def test_a_stream_of_a_call() -> None:
    script = ["Well. ", "<tool_call>", '{"name": "clock", "arguments": {"zo', 'ne": "CET"}}']
    fake = FakeEngine(script, context_length=8192)
    body = {"messages": [{"role": "user", "content": "Time?"}], "tools": [CLOCK], "stream": True}
    with running_api(tokenizer=chat_tokenizer(QWEN), fake=fake) as api:
        found = events(api.post("/v1/chat/completions", json=body).text)
    choices = [json.loads(each)["choices"][0] for each in found[:-1]]
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content", "") for delta in deltas) == "Well."
    parts = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert parts[0]["id"].startswith("call_")
    assert parts[0]["function"]["name"] == "clock"
    assert [part["function"]["arguments"] for part in parts] == ["", '{"zo', 'ne": "CET"}']
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_form_of_the_answer_leaves_no_reasoning_open() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    choice, prompt, _ = chat(OPENING, ["{}"], response_format=form)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert choice["message"]["content"] == "{}"
    choice, prompt, _ = chat(GPT_OSS, ["{}"], response_format=form)
    assert prompt.endswith("<|channel|>final<|message|>")
    assert choice["message"]["content"] == "{}"


def test_reasoning_are_told_apart() -> None:
    choice, _, _ = chat(OPENING, ["Hm", "m.\n</th", "ink>\n\nNoon."])
    assert choice["message"]["reasoning_content"] == "Hmm."
    assert choice["message"]["content"] == "Noon."
    script = ["<think>", "\nHm.\n", "</think>\n\n", '<tool_call>{"name": "clock"}']
    choice, _, _ = chat(QWEN, script, [CLOCK])
    assert choice["message"]["reasoning_content"] == "Hm."
    assert calls(choice) == [("clock", {})]
    # Of a model that knows no such marks they are text.
    choice, _, _ = chat("olmoe", ["<think>Hm.</think>Noon."])
    assert choice["message"]["content"] == "<think>Hm.</think>Noon."


XML_CALL = "<tool_call>\n<function=clock>\n</function>\n</tool_call>"


@pytest.mark.parametrize("end", ["\n</think>\n\n", "\n", "\n\n"])
def test_a_call_in_xml_also_ends_reasoning(end: str) -> None:
    choice, prompt, _ = chat(QWEN35, list(f"A <tool_call>?{end}{XML_CALL}"), [CLOCK])
    assert prompt.endswith("<think>\n")
    assert choice["message"]["reasoning_content"] == "A <tool_call>?"
    assert choice["message"]["content"] is None
    assert calls(choice) == [("clock", {})]
    # Without tools only the mark ends it.
    choice, _, _ = chat(QWEN35, [f"A{XML_CALL}B\n</think>\n\nC"])
    assert choice["message"]["reasoning_content"] == f"A{XML_CALL}B"
    assert choice["message"]["content"] == "C"


@pytest.mark.parametrize("template", [QWEN35, "LFM2.5"])
def test_reasoning_of_earlier_turns_is_not_written_again(template: str) -> None:
    said = {"role": "assistant", "content": "Noon.", "reasoning_content": "Hm."}
    call = {"id": "x", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    called = {"role": "assistant", "tool_calls": [call], "reasoning_content": "Which?"}
    asked = {"role": "user", "content": "Time?"}
    result = {"role": "tool", "tool_call_id": "x", "content": "12:00"}
    _, prompt, _ = chat(template, ["Ok"], [CLOCK], messages=[asked, said, asked, called, result])
    assert "Hm." not in prompt
    assert prompt.index("Which?") < prompt.index("12:00")


def test_thinking_can_be_turned_off() -> None:
    off = {"enable_thinking": False}
    choice, prompt, _ = chat(QWEN35, ["Noon."], chat_template_kwargs=off)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert choice["message"]["content"] == "Noon."


@pytest.mark.parametrize("route", ["chat/completions", "messages"])
@pytest.mark.parametrize("has_state", [False, True])
def test_models_with_state_learn_the_ends_of_messages(route: str, has_state: bool) -> None:
    talk = [{"role": role, "content": "Hm."} for role in ("user", "assistant", "user")]
    body = {"messages": talk, "max_tokens": 5, "model": "test-model"}
    fake = FakeEngine(["Hm."], context_length=8192)
    tokenizer = chat_tokenizer(QWEN35)
    with running_api(tokenizer=tokenizer, fake=fake, has_state=has_state) as api:
        assert api.post(f"/v1/{route}", json=body).status_code == 200
    (handle,) = fake.submitted
    ids, ends = handle.request.prompt_ids, handle.request.snapshot_positions
    parts = [tokenizer.decode(ids[:end], skip_special=False) for end in ends]
    assert len(parts) == (3 if has_state else 0)
    assert all(part.endswith("Hm.<|im_end|>\n") for part in parts)


@pytest.mark.parametrize("template", [QWEN35, "LFM2"])
def test_a_tool_that_cannot_be_enforced_is_an_error_of_the_client(template: str) -> None:
    broken = tool("clock")
    broken["function"]["parameters"]["properties"]["zone"]["pattern"] = "a{100000}"
    body = {"messages": [{"role": "user", "content": "Time?"}], "tools": [broken]}
    with running_api(tokenizer=chat_tokenizer(template)) as api:
        answer = api.post("/v1/chat/completions", json=body | {"tool_choice": "required"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"


def test_channels_of_gpt_oss() -> None:
    script = [
        "<|channel|>", "analysis<|message|>Hm.", "<|end|><|start|>assistant",
        "<|channel|>final<|message|>No", "on.",
    ]  # fmt: skip
    choice, _, _ = chat(GPT_OSS, script)
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "Noon."


REASONING = {
    "<think>\nHm.\n</think>\n\nNoon.": ("Hm.", "Noon."),
    " \n<think>Hm.</think>Noon.\n": ("Hm.", "Noon.\n"),
    "<think>\n\n</think>\n\nNoon.": ("", "Noon."),
    "<think>\nHm. a < b </thin": ("Hm. a < b </thin", ""),
    "<think>": ("", ""),
    "<thin": ("", "<thin"),
    " Noon. <think>x</think>": ("", " Noon. <think>x</think>"),
    "": ("", ""),
    " \n": ("", " \n"),
    "<think>a\n\nb</think> <think>c": ("a\n\nb", "<think>c"),
}


@pytest.mark.parametrize("text", REASONING)
@given(places=st.lists(st.integers(0, 40), max_size=6))
def test_reasoning_cut_anywhere(text: str, places: list[int]) -> None:
    ends = [*sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    marks = reasoning_marks("<think></think>")
    assert marks is not None
    reader = ReasoningOutput(PlainOutput(), marks, is_open=False)
    deltas = [delta for piece in pieces for delta in reader.push(piece)] + reader.finish()
    reasoning = "".join(delta.reasoning for delta in deltas)
    said = "".join(delta.content for delta in deltas)
    assert (reasoning, said) == REASONING[text]


def test_marks_of_reasoning() -> None:
    assert reasoning_marks(TEMPLATES[QWEN]) == ("<think>", "</think>")
    assert reasoning_marks("[THINK]x[/THINK]") == ("[THINK]", "[/THINK]")
    assert reasoning_marks(TEMPLATES["olmoe"]) is None
    assert reasoning_marks(None) is None


def test_a_function_without_parameters_takes_no_arguments() -> None:
    tools = [{"type": "function", "function": {"name": "stop"}}]
    made, _, api = chat(
        "olmoe", list('{"name":"stop","arguments":{}}'), tools, tool_choice="required"
    )
    assert calls(made) == [("stop", {})]
    schema = json.loads(str(api.fake.submitted[0].request.params.json_schema))
    (arguments,) = schema["$defs"].values()
    assert arguments["additionalProperties"] is False
    assert arguments["properties"] == {}


@pytest.mark.parametrize(
    "template", [QWEN, QWEN35, "LFM2", LLAMA, MISTRAL, NEMO, GPT_OSS, "olmoe", OPENING]
)
def test_a_call_that_a_limit_cuts_off_is_no_text(template: str) -> None:
    made, _, _ = chat(template, ["{", '"na'], [CLOCK], tool_choice="required", max_tokens=2)
    assert not made["message"]["content"]
