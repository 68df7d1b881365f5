"""Options of `LLM` and of commands: each one's type, default, checks, help and flags."""
