"""Chats of every API: messages in; text, reasoning and tool calls out."""
