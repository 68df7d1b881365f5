"""The way of a token: texts on one model, many at once, each step a token of every text.

`llm.LLM` is the class that users see. Every other module can be read and used on its own.
"""
