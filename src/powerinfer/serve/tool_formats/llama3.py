"""`{"name": ..., "parameters": ...}`, perhaps after `<|python_tag|>`: Llama 3.1, 3.2, 3.3."""

from collections.abc import Sequence

from powerinfer.serve.chat.deltas import ChatOutputParser
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.tool_formats._bare_objects import BareObjects
from powerinfer.serve.tool_formats._format import ForcedCall, Tool, ToolFormat, one_call_each
from powerinfer.serve.tool_formats._schemas import call_schema

__all__ = ["FORMAT"]

_MARK = "<|python_tag|>"


class _Llama3(ToolFormat):
    def is_shown_by(self, template: str) -> bool:
        # Hermes' models of this family put marks around a call.
        return (
            "<|start_header_id|>" in template
            and '"parameters"' in template
            and "<tool_call>" not in template
        )

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Convert messages, with one call in each: the template refuses more."""
        return one_call_each(super().messages(messages, tools))

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        return BareObjects(
            self, [tool.name for tool in tools], arguments_key="parameters", mark=_MARK
        )

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        return ForcedCall("", call_schema(tools, "parameters"))


FORMAT = _Llama3()
