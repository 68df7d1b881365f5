"""Number formats of weights: block layouts, decoding, encoding and error bounds, in numpy.

One file per format in ``formats/``; the file name is the format's name. `powerinfer.gguf`
reads the files, and the native core is fast; the functions here define the right answer for tests
of the kernels.
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
