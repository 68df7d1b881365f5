"""Output of commands: tables, summaries and progress."""
