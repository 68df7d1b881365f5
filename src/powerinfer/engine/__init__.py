"""The path of a token: many texts on one model, each step a token of every text.

`llm.LLM` is the class that users see. Every other module can be read and used on its own.
"""
