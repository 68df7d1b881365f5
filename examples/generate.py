"""Generate a text, then stream another: python examples/generate.py [MODEL.gguf]."""

import os
import sys

from powerinfer import LLM, PowerInferError, SamplingParams

params = SamplingParams(temperature=0.8, seed=1, max_tokens=48, stop=["\n\n"])

try:
    with LLM(sys.argv[1] if len(sys.argv) > 1 else None) as llm:
        result = llm.generate("Once upon a time", params)[0]
        print(result.text, f"({result.finish_reason}, {result.metrics.decode_tokens} tokens)")

        for piece in llm.stream("The little dog", params):
            print(piece, end="", flush=True)
        print()
except PowerInferError as error:
    sys.exit(f"error: {error}")
except BrokenPipeError:  # the reader, such as `head`, has closed its end
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
