"""What checkpoints of Hugging Face say about a model, in the words of GGUF.

Here are the rules for all families; what one family does differently is in its file in
`models/architectures`. Nothing here opens a file.
"""
