"""Times llama.cpp (through llama-cpp-python) on one GGUF file and prints one JSON object.

Run by compare.py in an environment that has llama-cpp-python; needs nothing of powerinfer.
"""

import time
from typing import Any

import llama_cpp
from procedure import CONTEXT, LONGEST_BATCH, fill_batch, measure, options_of


class LlamaCpp:
    """See `procedure.Engine`."""

    name = f"llama-cpp-python {llama_cpp.__version__}"

    def __init__(self, path: str, threads: int) -> None:
        llama_cpp.llama_backend_init()
        # Keep a reference: ctypes callbacks die with their Python object.
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, None)
        model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = CONTEXT
        params.n_batch = params.n_ubatch = LONGEST_BATCH
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._batch = llama_cpp.llama_batch_init(LONGEST_BATCH, 0, 1)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.system_info = llama_cpp.llama_print_system_info().decode()

    def clear(self) -> None:
        """Forget every token."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)  # noqa: FBT003  the C signature

    def step(self, token_ids: Any, position: int) -> float:
        """Compute `token_ids` from `position`; returns seconds."""
        fill_batch(self._batch, token_ids, position)
        start = time.perf_counter()
        if llama_cpp.llama_decode(self._context, self._batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_get_logits_ith(self._context, len(token_ids) - 1)
        return time.perf_counter() - start


def main() -> None:
    """Command line."""
    options = options_of(__doc__).parse_args()
    measure(options, lambda: LlamaCpp(options.model, options.threads))


if __name__ == "__main__":
    main()
