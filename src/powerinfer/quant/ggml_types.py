"""All tensor type ids of GGUF files, with the sizes of their blocks.

Files with unsupported types can be opened, listed and checked, so the sizes of all types are here;
supported types are the plug-ins in ``formats/``. Source: the enumeration ``ggml_type`` and the
block structs of ggml, public facts of the format; ids 4 and 5 were withdrawn before GGUF existed.
"""

from dataclasses import dataclass

__all__ = ["BlockType", "type_of_id", "type_of_name"]


@dataclass(frozen=True)
class BlockType:
    """A tensor type: lower-case name, id in tensor tables, elements and bytes of a block."""

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int


_TYPES = (
    BlockType("f32", 0, 1, 4),
    BlockType("f16", 1, 1, 2),
    BlockType("q4_0", 2, 32, 18),
    BlockType("q4_1", 3, 32, 20),
    BlockType("q5_0", 6, 32, 22),
    BlockType("q5_1", 7, 32, 24),
    BlockType("q8_0", 8, 32, 34),
    BlockType("q8_1", 9, 32, 36),
    BlockType("q2_k", 10, 256, 84),
    BlockType("q3_k", 11, 256, 110),
    BlockType("q4_k", 12, 256, 144),
    BlockType("q5_k", 13, 256, 176),
    BlockType("q6_k", 14, 256, 210),
    BlockType("q8_k", 15, 256, 292),
    BlockType("iq2_xxs", 16, 256, 66),
    BlockType("iq2_xs", 17, 256, 74),
    BlockType("iq3_xxs", 18, 256, 98),
    BlockType("iq1_s", 19, 256, 50),
    BlockType("iq4_nl", 20, 32, 18),
    BlockType("iq3_s", 21, 256, 110),
    BlockType("iq2_s", 22, 256, 82),
    BlockType("iq4_xs", 23, 256, 136),
    BlockType("i8", 24, 1, 1),
    BlockType("i16", 25, 1, 2),
    BlockType("i32", 26, 1, 4),
    BlockType("i64", 27, 1, 8),
    BlockType("f64", 28, 1, 8),
    BlockType("iq1_m", 29, 256, 56),
    BlockType("bf16", 30, 1, 2),
    # 31-33 and 36-38 are row-interleaved formats, written to files for some months of 2024.
    BlockType("q4_0_4_4", 31, 32, 18),
    BlockType("q4_0_4_8", 32, 32, 18),
    BlockType("q4_0_8_8", 33, 32, 18),
    BlockType("tq1_0", 34, 256, 54),
    BlockType("tq2_0", 35, 256, 66),
    BlockType("iq4_nl_4_4", 36, 32, 18),
    BlockType("iq4_nl_4_8", 37, 32, 18),
    BlockType("iq4_nl_8_8", 38, 32, 18),
    BlockType("mxfp4", 39, 32, 17),
    BlockType("nvfp4", 40, 64, 36),
    BlockType("q1_0", 41, 128, 18),
)
_BY_ID = {block.ggml_type: block for block in _TYPES}
_BY_NAME = {block.name: block for block in _TYPES}


def type_of_id(ggml_type: int) -> BlockType | None:
    """Return the type with this id, or None."""
    return _BY_ID.get(ggml_type)


def type_of_name(name: str) -> BlockType | None:
    """Return the type with this lower-case name, or None."""
    return _BY_NAME.get(name)
