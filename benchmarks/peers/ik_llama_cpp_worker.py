"""Times ik_llama.cpp (through ik-llama-cpp-python) on one GGUF file and prints one JSON object.

Run by compare.py in an environment that has ik-llama-cpp-python; needs nothing of powerinfer.
`--repack` is the engine's `-rtr`: weights are interleaved while they are loaded, which turns
mapping off. Everything else is the engine's default: flash attention and fused operations on.
"""

import ctypes
import time
from typing import Any

from ik_llama_cpp import _ctypes_api as ik
from procedure import CONTEXT, LONGEST_BATCH, fill_batch, measure, options_of


class IkLlamaCpp:
    """See `procedure.Engine`."""

    def __init__(self, path: str, threads: int, *, repack: bool, flash_attention: bool) -> None:
        library = ik._lib
        # Keep a reference: ctypes callbacks die with their Python object.
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        said: list[bytes] = []
        self._log = kind(lambda level, text, data: said.append(text))
        library.llama_log_set(self._log, None)
        ik.llama_backend_init()
        params = ik.llama_model_default_params()
        params.repack_tensors = repack
        params.use_mmap = not repack
        params.flash_attn = flash_attention
        model = ik.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise RuntimeError(f"cannot load the model: {b''.join(said)[-300:].decode()}")
        context = ik.llama_context_default_params()
        context.n_ctx = CONTEXT
        context.n_batch = context.n_ubatch = LONGEST_BATCH
        context.n_threads = context.n_threads_batch = threads
        context.flash_attn = flash_attention
        self._context = ik.llama_init_from_model(model, context)
        if not self._context:
            raise RuntimeError("cannot make a context")
        self._batch = ik.llama_batch_init(LONGEST_BATCH, 0, 1)
        self.vocab_size = ik.llama_vocab_n_tokens(ik.llama_model_get_vocab(model))
        library.llama_print_system_info.restype = ctypes.c_char_p
        self.system_info = library.llama_print_system_info().decode()
        self.name = f"ik_llama.cpp{' -rtr' if repack else ''}"

    def clear(self) -> None:
        """Forget every token."""
        ik.llama_kv_cache_clear(self._context)

    def step(self, token_ids: Any, position: int) -> float:
        """Compute `token_ids` from `position`; returns seconds."""
        fill_batch(self._batch, token_ids, position)
        start = time.perf_counter()
        if ik.llama_decode(self._context, self._batch) != 0:
            raise RuntimeError("llama_decode failed")
        ik.llama_get_logits_ith(self._context, len(token_ids) - 1)
        return time.perf_counter() - start


def main() -> None:
    """Command line."""
    parser = options_of(__doc__)
    parser.add_argument("--repack", action="store_true", help="interleave weights at load (-rtr)")
    parser.add_argument("--no-flash-attention", action="store_true")
    options = parser.parse_args()
    measure(
        options,
        lambda: IkLlamaCpp(
            options.model,
            options.threads,
            repack=options.repack,
            flash_attention=not options.no_flash_attention,
        ),
    )


if __name__ == "__main__":
    main()
