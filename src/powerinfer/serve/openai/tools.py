"""`tools` and `tool_choice` of a request."""

import re
from collections.abc import Collection, Sequence

from powerinfer.serve.chat.messages import Function, FunctionTool
from powerinfer.serve.fields import Fields

__all__ = ["read_tool_choice", "read_tools"]

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CHOICES = ("none", "auto", "required")


def read_tools(fields: Fields) -> list[FunctionTool]:
    """Read the tools.

    Raises:
        ApiError: a tool has no name, two have the same, or one is no function.
    """
    tools: list[FunctionTool] = []
    for tool in fields.objects("tools"):
        tool.required_choice("type", ("function",))
        function = tool.required_object("function")
        name = _name(function)
        if any(name == each["function"]["name"] for each in tools):
            raise function.fault("name", f": there are two tools {name!r}")
        parameters = function.object("parameters")
        described: Function = {"name": name}
        description = function.text("description")
        if description is not None:
            described["description"] = description
        if parameters is not None:
            described["parameters"] = dict(parameters.values)
        tools.append({"type": "function", "function": described})
    if len(tools) > MAX_TOOLS:
        raise fields.error("tools", f"at most {MAX_TOOLS} tools", "array_above_max_length")
    return tools


def read_tool_choice(
    fields: Fields, tools: Sequence[FunctionTool]
) -> tuple[Sequence[FunctionTool], Collection[str]]:
    """Read the tools that the answer may call, and the names of those of which it must call one.

    Raises:
        ApiError: an unknown tool is requested.
    """
    value = fields.values.get("tool_choice")
    if value is None:
        return tools, ()
    names = [tool["function"]["name"] for tool in tools]
    if isinstance(value, str):
        choice = fields.required_choice("tool_choice", _CHOICES)
        if choice == "required" and not tools:
            raise fields.error("tool_choice", "none: there are no tools", "invalid_value")
        return () if choice == "none" else tools, names if choice == "required" else ()
    function = fields.required_object("tool_choice").object("function")
    if function is None:
        raise fields.error("tool_choice", "none, auto, required or the name of a function")
    name = _name(function)
    if name not in names:
        raise function.fault("name", f": there is no tool {name!r}")
    return tools, (name,)


def _name(function: Fields) -> str:
    name = function.required_text("name")
    if _NAME.fullmatch(name) is None:
        wanted = "letters, digits, dots, hyphens and underscores, at most 64"
        raise function.error("name", wanted, "invalid_value")
    return name
