"""The formats that C++ lists (cpp/quant/format_list.inc) against those of numpy."""

import pytest

from powerinfer import _core
from powerinfer.ops.cpu.weights import FORMATS, REPACKED_FORMATS
from powerinfer.quant import format_names, get_format, internal_format_names

BLOCKS = _core.formats()
SUPERBLOCK = 256
READ_ONLY: frozenset[str] = frozenset()
"""Formats that numpy reads and that have no kernels."""


@pytest.mark.parametrize("name", sorted({*format_names(), *internal_format_names()} - READ_ONLY))
def test_blocks_have_the_same_size_in_both(name: str) -> None:
    known = get_format(name)
    assert BLOCKS[name] == (known.block_size, known.block_bytes)


def test_superblocks_take_the_room_of_the_blocks_that_they_replace() -> None:
    assert {*FORMATS} - {"f32", "f16", "bf16", "mxfp4"} == REPACKED_FORMATS
    for name in REPACKED_FORMATS:
        assert BLOCKS[f"{name}_superblock"] == (SUPERBLOCK, get_format(name).num_bytes(SUPERBLOCK))


def test_every_format_is_of_files_a_superblock_or_internal() -> None:
    superblocks = {f"{name}_superblock" for name in REPACKED_FORMATS}
    assert set(FORMATS) == {*format_names()} - READ_ONLY
    assert set(BLOCKS) == {*FORMATS, *superblocks, *internal_format_names()}
