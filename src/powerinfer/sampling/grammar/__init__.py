"""Structured output: JSON schemas, regular expressions and grammars that a text must follow."""
