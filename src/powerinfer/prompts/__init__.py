"""Prompts from what callers pass: texts, messages, chat templates and reasoning marks."""
