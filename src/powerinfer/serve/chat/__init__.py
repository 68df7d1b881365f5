"""Chats, whatever API they come through: messages in, and text, reasoning and tool calls out."""
