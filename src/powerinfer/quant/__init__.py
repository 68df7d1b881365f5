"""Number formats of weights: block layouts, decoding, encoding and error bounds, in numpy.

One file per format in ``formats/``; the file name is the format's name. Nothing here reads files
(that is `powerinfer.gguf`) and nothing here is meant to be fast (that is the native core): these
functions define the right answer that kernels are tested against.
"""

from powerinfer.quant.format import (
    BlockDecoder,
    BlockEncoder,
    QuantFormat,
    format_names,
    format_of_ggml_type,
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
    "format_of_ggml_type",
    "get_format",
    "internal_format_names",
    "type_of_id",
    "type_of_name",
]
