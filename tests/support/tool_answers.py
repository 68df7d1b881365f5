"""Answers with calls of tools, as models write them, and what is to be read from them."""

import json
from collections.abc import Mapping, Sequence

__all__ = ["ANSWERS", "written_calls"]

# By form, what stands between calls, and a call with its name and arguments.
_CALLS = {
    "described": ("\n", '{{"name": "{}", "arguments": {}}}'),
    "harmony": (
        "<|call|><|start|>assistant",
        "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}",
    ),
    "hermes": ("\n", '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'),
    "llama3": ("; ", '{{"name": "{}", "parameters": {}}}'),
    "mistral": ("", "[TOOL_CALLS]{}[ARGS]{}"),
}


def written_calls(form: str, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    """Calls, each a name and arguments, as models that know the form write them."""
    between, call = _CALLS[form]
    return between.join(
        call.format(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls
    )


def _xml(name: str, **arguments: str) -> str:
    """A call as Qwen3.5 writes it."""
    values = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _python(calls: str) -> str:
    """Calls as LFM2 writes them."""
    return f"<|tool_call_start|>[{calls}]<|tool_call_end|>"


HERMES = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
# Form, answer, what is said, name and arguments of the calls.
_Q = '<|"|>'


def _gemma4(call: str) -> str:
    """A call as Gemma 4 writes it, with quotation marks for its marks of texts."""
    return f"<|tool_call>call:{call.replace('`', _Q)}<tool_call|>"


ANSWERS: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "text before": ("hermes", f"Let me see.\n\n{HERMES}", "Let me see.", [("clock", "{}")]),
    "text behind": ("hermes", f"{HERMES}\n\nWait.", "Wait.", [("clock", "{}")]),
    "two": ("hermes", f"{HERMES}\n{HERMES}", "", [("clock", "{}")] * 2),
    "no closing mark": ("hermes", HERMES.removesuffix("</tool_call>"), "", [("clock", "{}")]),
    "text instead of the closing mark": (
        "hermes",
        '<tool_call>{"name": "clock", "arguments": {}} Now wait.',
        "Now wait.",
        [("clock", "{}")],
    ),
    "no arguments": ("hermes", '<tool_call>{"name": "clock"}</tool_call>', "", [("clock", "{}")]),
    "arguments first": (
        "hermes",
        '<tool_call>{"arguments": {"a": [1, {}]}, "name": "f"}</tool_call>',
        "",
        [("f", '{"a": [1, {}]}')],
    ),
    "arguments as text": (
        "hermes",
        r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>',
        "",
        [("f", '{"a": 1}')],
    ),
    "null": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        "",
        [("f", "{}")],
    ),
    "more keys": (
        "hermes",
        '<tool_call>{"id": 7, "name": "f", "arguments": {}, "x": [true]}</tool_call>',
        "",
        [("f", "{}")],
    ),
    "cut off": ("hermes", '<tool_call>{"name": "f", "arguments": {"a', "", [("f", '{"a')]),
    "cut off before the name": ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    "no JSON": ("hermes", "<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
    "an empty name": (
        "hermes",
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": ""}</tool_call>',
        [],
    ),
    "no JSON behind the name": (
        "hermes",
        '<tool_call>{"name": "f" oh}</tool_call> Well.',
        "Well.",
        [("f", "")],
    ),
    "half a character": (
        "hermes",
        r'<tool_call>{"name": "f\ud800", "arguments": {}}</tool_call>',
        "",
        [("f?", "{}")],
    ),
    "python tag": (
        "llama3",
        '<|python_tag|>{"name": "clock", "parameters": {}}',
        "",
        [("clock", "{}")],
    ),
    "semicolon": (
        "llama3",
        '{"name": "clock", "parameters": {}}; {"name": "weather", "parameters": {"a": 1}}',
        "",
        [("clock", "{}"), ("weather", '{"a": 1}')],
    ),
    "type": (
        "llama3",
        '{"type": "function", "name": "clock", "parameters": {}}',
        "",
        [("clock", "{}")],
    ),
    "another function": (
        "llama3",
        '{"name": "poem", "parameters": {}}',
        '{"name": "poem", "parameters": {}}',
        [],
    ),
    "other JSON": ("llama3", ' {"a": {"name": "clock"}}', ' {"a": {"name": "clock"}}', []),
    "JSON in a text": ("llama3", 'So: {"name": "clock"}', 'So: {"name": "clock"}', []),
    "text behind a call": ("llama3", '{"name": "clock"} Done.', "Done.", [("clock", "{}")]),
    "list": (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "x"}, {"name": "g"}]',
        "",
        [("f", '{"a": "]"}'), ("g", "{}")],
    ),
    "text before a list": (
        "mistral",
        'Well. [TOOL_CALLS][{"name": "f", "arguments": {}}]',
        "Well.",
        [("f", "{}")],
    ),
    "object": ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    "name": ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    "name and id": (
        "mistral",
        '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]g{}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    "name alone": ("mistral", "[TOOL_CALLS]f", "[TOOL_CALLS]f", []),
    "list of numbers": ("mistral", "[TOOL_CALLS][1]", "1]", []),
    "thought, call": (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f"
        '<|channel|>commentary json<|message|>{"a": 1}',
        "",
        [("f", '{"a": 1}')],
    ),
    "preamble, call": (
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "I look.",
        [("f", "{}")],
    ),
    "XML": (
        "qwen_xml",
        f"Let me see.\n\n{_xml('weather', place='Köln')}",
        "Let me see.",
        [("weather", '{"place": "Köln"}')],
    ),
    "two in XML": (
        "qwen_xml",
        f"{_xml('clock')}\n{_xml('weather', place='a', days='[1]')}\n\nWait.",
        "Wait.",
        [("clock", "{}"), ("weather", '{"place": "a", "days": [1]}')],
    ),
    "lines": (
        "qwen_xml",
        _xml("weather", place='\n a "b"\\\n\n'),
        "",
        [("weather", r'{"place": "\n a \"b\"\\\n\n"}')],
    ),
    "XML in one line": (
        "qwen_xml",
        "<tool_call><function=weather><parameter=place>x</parameter></function></tool_call>",
        "",
        [("weather", '{"place": "x"}')],
    ),
    "marks in a value": (
        "qwen_xml",
        _xml("weather", place="a</parameter> b\n</function>\n<parameter=x>"),
        "",
        [("weather", r'{"place": "a</parameter> b\n</function>\n<parameter=x>"}')],
    ),
    "no first mark": (
        "qwen_xml",
        _xml("clock").removeprefix("<tool_call>\n"),
        "",
        [("clock", "{}")],
    ),
    "a function that is no tool": (
        "qwen_xml",
        "Write <function=f> or <function= clock > and",
        "Write <function=f> or",
        [("clock", "{}")],
    ),
    "no mark at the end of a value": (
        "qwen_xml",
        _xml("weather", place="x").replace("\n</parameter>", ""),
        "",
        [("weather", '{"place": "x"}')],
    ),
    "no last marks": (
        "qwen_xml",
        _xml("weather", place="x").partition("</function>")[0],
        "",
        [("weather", '{"place": "x"}')],
    ),
    "an argument cut off": (
        "qwen_xml",
        "<tool_call>\n<function=weather>\n<parameter=place>\nKö",
        "",
        [("weather", '{"place": "Kö')],
    ),
    "other text between arguments": (
        "qwen_xml",
        "<tool_call><function=f>\nWell:\n<parameter=a>1</parameter>\n</tool_call>",
        "",
        [("f", '{"a": 1}')],
    ),
    "JSON instead of XML": (
        "qwen_xml",
        '<tool_call>{"name": "clock"}</tool_call>',
        '<tool_call>{"name": "clock"}</tool_call>',
        [],
    ),
    "XML without a name": (
        "qwen_xml",
        "<tool_call><function= ></function></tool_call>",
        "<tool_call><function= ></function></tool_call>",
        [],
    ),
    "a name cut off": ("qwen_xml", "<tool_call>\n<function=we", "<tool_call>\n<function=we", []),
    "Python": (
        "lfm2",
        f"I look.\n{_python('''weather(place='Köln'), clock()''')}\nWait.",
        "I look.Wait.",
        [("weather", '{"place": "Köln"}'), ("clock", "{}")],
    ),
    "values of Python": (
        "lfm2",
        _python("f(a=True, b=None, c={'x': (1, 2.5,)}, d = [false, null], e=-1e3,)"),
        "",
        [("f", '{"a": true, "b": null, "c": {"x": [1, 2.5]}, "d": [false, null], "e": -1e3}')],
    ),
    "quotation marks": (
        "lfm2",
        _python(r"""f(a="it's", b='it's', c="say \"x\"", d='sed -n '1,9p' f.py', e='\d\n')"""),
        "",
        [
            (
                "f",
                r"""{"a": "it's", "b": "it's", "c": "say \"x\"", "d": "sed -n '1,9p' f.py", """
                r""""e": "\\d\n"}""",
            )
        ],
    ),
    "brackets in a text": (
        "lfm2",
        _python("f(a='x)], g(', b='[\n]')"),
        "",
        [("f", r'{"a": "x)], g(", "b": "[\n]"}')],
    ),
    "no names of arguments": (
        "lfm2",
        _python("weather('Köln'), f(1)"),
        "",
        [("weather", '{"place": "Köln"}'), ("f", "{}")],
    ),
    "neither a text nor a number": (
        "lfm2",
        _python("f(a=Köln, b=1 + 1, c=0x1F)"),
        "",
        [("f", '{"a": "Köln", "b": "1 + 1", "c": "0x1F"}')],
    ),
    "no list": (
        "lfm2",
        "<|tool_call_start|>clock()<|tool_call_end|>",
        "",
        [("clock", "{}")],
    ),
    "list of objects": (
        "lfm2",
        _python('{"name": "f", "arguments": {"a": "]"}}, {"name": "g"}'),
        "",
        [("f", '{"a": "]"}'), ("g", "{}")],
    ),
    "no calls": ("lfm2", _python("Hello, (you)"), _python("Hello, (you)"), []),
    "a call and text": ("lfm2", _python("clock(), Hello"), "", [("clock", "{}")]),
    "an object without a name": ("lfm2", _python('{"a": 1}'), _python('{"a": 1}'), []),
    "no closing bracket": (
        "lfm2",
        "<|tool_call_start|>[f(a=1<|tool_call_end|> Well.",
        "Well.",
        [("f", '{"a": 1}')],
    ),
    "no mark at the end": ("lfm2", "<|tool_call_start|>[clock()]", "", [("clock", "{}")]),
    "Python cut off": ("lfm2", "<|tool_call_start|>[f(a=1, b='x", "", [("f", '{"a": 1')]),
    "Python cut off before the name": (
        "lfm2",
        "<|tool_call_start|>[clo",
        "<|tool_call_start|>[clo",
        [],
    ),
    "gemma4": (
        "gemma4",
        f"Let me see. {_gemma4('weather{place:`Köln`}')}",
        "Let me see.",
        [("weather", '{"place": "Köln"}')],
    ),
    "gemma4, no arguments": ("gemma4", _gemma4("clock{}"), "", [("clock", "{}")]),
    "gemma4, two": ("gemma4", _gemma4("clock{}") * 2, "", [("clock", "{}")] * 2),
    "gemma4, values": (
        "gemma4",
        _gemma4('f{a:1.50,b:[true,null, `x`],c:{d:`e,}`,`g h`:-2}, s:`<tool_call|>\n"`}'),
        "",
        [
            (
                "f",
                '{"a": 1.50, "b": [true, null, "x"], "c": {"d": "e,}", "g h": -2}, '
                '"s": "<tool_call|>\\n\\""}',
            )
        ],
    ),
    "gemma4, JSON texts": (
        "gemma4",
        _gemma4('weather{"place":"Bad \\"Ems\\""}'),
        "",
        [("weather", '{"place": "Bad \\"Ems\\""}')],
    ),
    "gemma4, a bare text": (
        "gemma4",
        _gemma4("weather{place:Köln}"),
        "",
        [("weather", '{"place": "Köln"}')],
    ),
    "gemma4, a number for a text": (
        "gemma4",
        _gemma4("weather{place:12}"),
        "",
        [("weather", '{"place": "12"}')],
    ),
    "gemma4, no closing mark": (
        "gemma4",
        "<|tool_call>call:clock{}",
        "",
        [("clock", "{}")],
    ),
    "gemma4, cut off": ("gemma4", '<|tool_call>call:f{a:<|"|>b', "", [("f", "")]),
    "gemma4, cut off before the arguments": (
        "gemma4",
        "<|tool_call>call:f",
        "<|tool_call>call:f",
        [],
    ),
    "gemma4, no call": (
        "gemma4",
        "<|tool_call>hm<tool_call|> ok",
        "<|tool_call>hm<tool_call|> ok",
        [],
    ),
    "gemma4, broken": ("gemma4", _gemma4("f{a:}") + " ok", "ok", [("f", "")]),
}
