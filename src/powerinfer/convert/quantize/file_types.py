"""File types of `powerinfer quantize`, with llama.cpp's names and numbers.

A file has one type, but its tensors may have other formats: see
`powerinfer.convert.quantize.mixture`.
"""

from dataclasses import dataclass

from powerinfer.errors import UnsupportedError

__all__ = ["FILE_TYPES", "FileType", "find_file_type"]


@dataclass(frozen=True, slots=True)
class FileType:
    """A type of files: its value of ``general.file_type``, and the format of most tensors."""

    name: str
    number: int
    format: str


FILE_TYPES = (
    FileType("Q4_0", 2, "q4_0"),
    FileType("Q4_1", 3, "q4_1"),
    FileType("Q5_0", 8, "q5_0"),
    FileType("Q5_1", 9, "q5_1"),
    FileType("Q8_0", 7, "q8_0"),
    FileType("Q4_K_S", 14, "q4_k"),
    FileType("Q4_K_M", 15, "q4_k"),
    FileType("Q5_K_S", 16, "q5_k"),
    FileType("Q5_K_M", 17, "q5_k"),
    FileType("Q6_K", 18, "q6_k"),
    FileType("F16", 1, "f16"),
    FileType("BF16", 32, "bf16"),
)


def find_file_type(name: str) -> FileType:
    """Find a type by name, ignoring case.

    Raises:
        UnsupportedError: unknown name; the message lists the known ones.
    """
    for file_type in FILE_TYPES:
        if file_type.name == name.upper():
            return file_type
    names = ", ".join(file_type.name for file_type in FILE_TYPES)
    raise UnsupportedError(f"type {name!r:.40} is unknown; supported are {names}")
