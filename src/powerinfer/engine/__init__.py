"""From a model file to its text: loading, steps, choosing tokens, stopping, figures.

`llm.LLM` is the class that users see. Every other module can be read and used on its own.
"""
