"""Generation: loading a model, running its steps, choosing tokens, stopping, and what it cost.

`llm.LLM` is the facade; everything else can be read and used on its own.
"""
