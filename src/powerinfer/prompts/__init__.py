"""Prompts from texts, token ids and messages: checking, tokenizing, chat templates."""
