"""Number formats of weights: block layouts, decoding, encoding and error bounds, in numpy.

One file per format in ``formats/``, with the name of the format. `powerinfer.gguf` reads model
files, and the native core is fast; the functions here are the reference for tests of the kernels.
"""

from powerinfer.quant.format import (
    BlockDecoder,
    BlockEncoder,
    QuantFormat,
    format_names,
    get_format,
    internal_format_names,
)
from powerinfer.quant.ggml_types import BlockType, type_of_id, type_of_name

__all__ = [
    "BlockDecoder",
    "BlockEncoder",
    "BlockType",
    "QuantFormat",
    "format_names",
    "get_format",
    "internal_format_names",
    "type_of_id",
    "type_of_name",
]
