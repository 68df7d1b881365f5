"""Reading: what a good file gives, and that each kind of bad file is one clear error."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

import gguf_bytes as gb
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, ValueType, open_gguf

ONES = np.ones(8, "<f4").tobytes()


def good() -> gb.Image:
    """A small valid file with two tensors."""
    return gb.Image(
        entries=[gb.entry("general.architecture", gb.STRING, gb.text("llama"))],
        tensors=[gb.tensor("a", [4, 2]), gb.tensor("b", [8], offset=32)],
        data=ONES + ONES,
    )


def test_reads_every_value_type(tmp_path: Path) -> None:
    image = gb.Image(
        entries=[
            gb.entry("u8", gb.U8, b"\xff"),
            gb.entry("i8", gb.I8, b"\xff"),
            gb.entry("u16", gb.U16, b"\xff\xff"),
            gb.entry("i16", gb.I16, b"\xfe\xff"),
            gb.u32("u32", 2**32 - 1),
            gb.entry("i32", gb.I32, struct.pack("<i", -5)),
            gb.entry("f32", gb.F32, struct.pack("<f", 0.5)),
            gb.entry("bool", gb.BOOL, b"\x01"),
            gb.entry("text", gb.STRING, gb.text("naïve 🦙")),
            gb.entry("u64", gb.U64, struct.pack("<Q", 2**64 - 1)),
            gb.entry("i64", gb.I64, struct.pack("<q", -(2**63))),
            gb.entry("f64", gb.F64, struct.pack("<d", 1e300)),
            gb.entry("texts", gb.ARRAY, gb.array(gb.STRING, 3, gb.text("a") * 2 + gb.text(""))),
            gb.entry("shorts", gb.ARRAY, gb.array(gb.I16, 2, struct.pack("<hh", 1, -1))),
            gb.entry("flags", gb.ARRAY, gb.array(gb.BOOL, 2, b"\x01\x00")),
            gb.entry("none", gb.ARRAY, gb.array(gb.F64, 0, b"")),
        ]
    )
    file = open_gguf(image.write(tmp_path))
    scalars = {k: v for k, v in file.metadata.items() if not isinstance(v, np.ndarray)}
    assert scalars == {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 2**32 - 1,
        "i32": -5,
        "f32": 0.5,
        "bool": True,
        "text": "naïve 🦙",
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f64": 1e300,
        "texts": ["a", "a", ""],
    }
    shorts = file.get_array("shorts")
    assert shorts.dtype == np.int16
    assert shorts.tolist() == [1, -1]
    assert shorts.flags.aligned
    assert not shorts.flags.writeable
    assert file.get_array("flags").tolist() == [True, False]
    assert file.get_array("none").tolist() == []
    assert file.types["shorts"] is ValueType.I16
    assert file.types["u64"] is ValueType.U64


@pytest.mark.parametrize("magic", [b"GGUF", b"PWRI"])
@pytest.mark.parametrize("version", [2, 3])
def test_tensors_are_read_only_views_of_the_file(
    tmp_path: Path, magic: bytes, version: int
) -> None:
    image = good()
    image.magic, image.version = magic, version
    path = image.write(tmp_path)
    file = open_gguf(path)
    assert (file.magic, file.version, file.paths) == (magic.decode(), version, (path,))
    assert list(file.tensors) == ["a", "b"]
    tensor = file.tensors["a"]
    assert (tensor.shape, tensor.format, tensor.num_bytes) == ((2, 4), "f32", 32)
    assert tensor.num_elements == 8
    assert tensor.rows.shape == (2, 16)
    assert np.array_equal(tensor.decode(), np.ones((2, 4), np.float32))
    assert np.shares_memory(tensor.numbers(), tensor.data)
    assert tensor.data.ctypes.data % 32 == 0
    with pytest.raises(ValueError, match="read-only"):
        tensor.data[0] = 1
    assert tensor.file == path


def test_views_outlive_the_file_object(tmp_path: Path) -> None:
    data = open_gguf(good().write(tmp_path)).tensors["b"].data
    assert data.view("<f4").tolist() == [1.0] * 8


def test_empty_tensors_and_scalars(tmp_path: Path) -> None:
    """PowerInfer's split files hold an empty bucket for a layer without neurons on the GPU."""
    image = gb.Image(
        tensors=[
            gb.tensor("blk.0.gpu_idx", [4], 18),
            gb.tensor("blk.0.gpu_bucket", [0], 18, offset=1 << 40),
            gb.tensor("wide", [32, 0, 3], 2, offset=7),
            gb.tensor("one", [], 0, offset=32),
        ],
        data=np.array([0, 1, 0, 1, 0, 0, 0, 0, 7], "<i4").tobytes(),
        magic=b"PWRI",
    )
    file = open_gguf(image.write(tmp_path))
    assert file.tensors["blk.0.gpu_idx"].numbers().tolist() == [0, 1, 0, 1]
    assert file.tensors["blk.0.gpu_bucket"].numbers().shape == (0,)
    assert file.tensors["wide"].decode().shape == (3, 0, 32)
    assert file.tensors["wide"].rows.shape[0] == 0
    assert file.tensors["one"].shape == ()
    assert file.tensors["one"].numbers().view("<i4") == 7


def test_integer_ids_depend_on_the_magic(tmp_path: Path) -> None:
    image = gb.Image(tensors=[gb.tensor("ids", [256], 18)], data=bytes(1024), magic=b"PWRI")
    assert open_gguf(image.write(tmp_path)).tensors["ids"].format == "i32"
    image.magic = b"GGUF"
    assert open_gguf(image.write(tmp_path)).tensors["ids"].format == "iq3_xxs"


def test_types_we_cannot_compute_open_and_list(tmp_path: Path) -> None:
    image = gb.Image(tensors=[gb.tensor("w", [256, 2], 16)], data=bytes(132))
    tensor = open_gguf(image.write(tmp_path)).tensors["w"]
    assert (tensor.format, tensor.num_bytes) == ("iq2_xxs", 132)
    with pytest.raises(UnsupportedError, match=r"iq2_xxs.*q4_k"):
        tensor.decode()
    with pytest.raises(GGUFError, match="not a plain number type"):
        tensor.numbers()


def test_alignment_key_moves_the_data(tmp_path: Path) -> None:
    image = gb.Image(
        entries=[gb.u32("general.alignment", 256)],
        tensors=[gb.tensor("a", [8])],
        data=ONES,
        alignment=256,
    )
    file = open_gguf(image.write(tmp_path))
    assert file.tensors["a"].decode().tolist() == [1.0] * 8


BAD_IMAGES: dict[str, tuple[gb.Image, str]] = {
    "magic": (gb.Image(magic=b"GGML"), r"magic: the file starts with b'GGML'"),
    "version 1": (gb.Image(version=1), r"version 1 is not supported; convert"),
    "version 4": (gb.Image(version=4), r"version 4 is unknown; 2 and 3"),
    "big-endian": (gb.Image(version=3 << 24), r"big-endian"),
    "many keys": (gb.Image(num_entries=2**63), r"metadata entries: claims 9223372036854775808"),
    "many tensors": (gb.Image(num_tensors=2**64 - 1), r"number of tensors: claims 1844674407"),
    "a key missing": (gb.Image(num_entries=1, data=bytes(99)), r"metadata entry 0: is empty"),
    "key not UTF-8": (
        gb.Image(entries=[gb.entry(b"\xff\xfe", gb.U8, b"\0")]),
        r"key of metadata entry 0: b'\\xff\\xfe' is not valid UTF-8",
    ),
    "key length": (
        gb.Image(entries=[struct.pack("<Q", 2**62) + bytes(20)]),
        r"metadata entry 0: needs 4611686018427387904 bytes .* truncated",
    ),
    "key twice": (gb.Image(entries=[gb.u32("k", 1)] * 2), r"key 'k': appears twice"),
    "value type": (
        gb.Image(entries=[gb.entry("k", 13, bytes(8))]),
        r"key 'k': value type 13 is unknown",
    ),
    "text not UTF-8": (
        gb.Image(entries=[gb.entry("k", gb.STRING, gb.text(b"\x80"))]),
        r"key 'k': b'\\x80' is not valid UTF-8",
    ),
    "bool": (gb.Image(entries=[gb.entry("k", gb.BOOL, b"\x02")]), r"'k': a truth value .* as 2"),
    "nested": (
        gb.Image(entries=[gb.entry("k", gb.ARRAY, gb.array(gb.ARRAY, 1, bytes(12)))]),
        r"'k': is an array of arrays",
    ),
    "array type": (
        gb.Image(entries=[gb.entry("k", gb.ARRAY, gb.array(99, 0, b"") + bytes(9))]),
        r"'k', element type: value type 99",
    ),
    "array length": (
        gb.Image(entries=[gb.entry("k", gb.ARRAY, gb.array(gb.U64, 2**61, bytes(64)))]),
        r"'k', length: claims 2305843009213693952 entries",
    ),
    "texts length": (
        gb.Image(entries=[gb.entry("k", gb.ARRAY, gb.array(gb.STRING, 100, bytes(64)))]),
        r"'k', length: claims 100 entries of at least 8",
    ),
    "text in array": (
        gb.Image(
            entries=[
                gb.entry("k", gb.ARRAY, gb.array(gb.STRING, 2, gb.text("ok") + gb.text(b"\xc3")))
            ]
        ),
        r"'k', item 1: b'\\xc3' is not valid UTF-8",
    ),
    "text in array too long": (
        gb.Image(
            entries=[
                gb.entry(
                    "k",
                    gb.ARRAY,
                    gb.array(gb.STRING, 2, gb.text("ok") + struct.pack("<Q", 2**64 - 1)),
                )
            ]
        ),
        r"'k', item 1: needs 18446744073709551615 bytes",
    ),
    "tensor name empty": (gb.Image(tensors=[gb.tensor("", [1])]), r"name of tensor 0: is empty"),
    "tensor name not UTF-8": (
        gb.Image(tensors=[gb.tensor(b"\xf5", [1])]),
        r"name of tensor 0: b'\\xf5'",
    ),
    "tensor twice": (
        gb.Image(tensors=[gb.tensor("a", [0])] * 2),
        r"tensor 'a': appears twice",
    ),
    "dimensions": (
        gb.Image(tensors=[gb.tensor("a", [1] * 5)]),
        r"tensor 'a': has 5 dimensions; at most 4",
    ),
    "huge dimensions": (
        gb.Image(tensors=[gb.tensor("a", [2**63, 2**63])]),
        r"tensor 'a': dimensions .* beyond anything",
    ),
    "huge but empty": (
        gb.Image(tensors=[gb.tensor("a", [2**63, 0])]),
        r"tensor 'a': dimensions .* beyond anything",
    ),
    "type id": (gb.Image(tensors=[gb.tensor("a", [1], 4711)]), r"'a': type id 4711 is unknown"),
    "partial block": (
        gb.Image(tensors=[gb.tensor("a", [48, 2], 2)], data=bytes(99)),
        r"'a': rows of 48 elements are not whole q4_0 blocks of 32",
    ),
    "beyond the end": (
        gb.Image(tensors=[gb.tensor("a", [9])], data=ONES),
        r"tensor 'a': its 36 bytes at 64 reach beyond the end of the file \(96 bytes\)",
    ),
    "offset": (
        gb.Image(tensors=[gb.tensor("a", [8], offset=2**63)], data=ONES),
        r"tensor 'a': .* beyond the end",
    ),
    "unaligned": (
        gb.Image(tensors=[gb.tensor("a", [1], offset=4)], data=ONES),
        r"tensor 'a': offset 4 is not a multiple of the alignment 32",
    ),
    "overlap": (
        gb.Image(tensors=[gb.tensor("a", [16]), gb.tensor("b", [8], offset=32)], data=ONES + ONES),
        r"tensor 'b': overlaps tensor 'a'",
    ),
    "same place": (
        gb.Image(tensors=[gb.tensor("a", [8]), gb.tensor("b", [8])], data=ONES),
        r"overlaps",
    ),
    "alignment 0": (gb.Image(entries=[gb.u32("general.alignment", 0)]), r"alignment': is 0"),
    "alignment 48": (gb.Image(entries=[gb.u32("general.alignment", 48)]), r"not a power of two"),
    "alignment huge": (gb.Image(entries=[gb.u32("general.alignment", 2**31)]), r"2147483648"),
    "alignment text": (
        gb.Image(entries=[gb.entry("general.alignment", gb.STRING, gb.text("32"))]),
        r"alignment': is a str, not an integer",
    ),
}


@pytest.mark.parametrize("case", list(BAD_IMAGES))
def test_bad_file_is_one_clear_error(tmp_path: Path, case: str) -> None:
    image, message = BAD_IMAGES[case]
    path = image.write(tmp_path, "bad.gguf")
    with pytest.raises(GGUFError, match=message) as caught:
        open_gguf(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", range(len(bytes(good()))))
def test_every_truncation_is_an_error(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(bytes(good())[:length])
    with pytest.raises(GGUFError, match=r"cut\.gguf"):
        open_gguf(path)


def test_names_in_messages_are_escaped_and_cut(tmp_path: Path) -> None:
    image = gb.Image(entries=[gb.u32("evil\x1b[2J" + "x" * 5000, 1)] * 2)
    with pytest.raises(GGUFError, match=r"evil\\x1b\[2Jx+\.\.\.") as caught:
        open_gguf(image.write(tmp_path))
    assert len(str(caught.value)) < 400


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="no such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(GGUFError, match="cannot open"):
        open_gguf("bad\0name.gguf")
    with pytest.raises(GGUFError, match="cannot open"):
        open_gguf(tmp_path / ("x" * 5000))
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(GGUFError, match="is empty"):
        open_gguf(empty)
    with pytest.raises(GGUFError, match="not a regular file"):
        open_gguf("/dev/null")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(GGUFError, match="not a regular file"):
        open_gguf(pipe)


def test_a_file_we_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = good().write(tmp_path)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(GGUFError, match="cannot open: Permission denied"):
        open_gguf(path)


def test_folder_with_one_model(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"holds no \.gguf file"):
        open_gguf(tmp_path)
    path = good().write(tmp_path)
    (tmp_path / "model.gguf.generated.gpuidx").write_bytes(b"")
    assert open_gguf(tmp_path).paths == (path,)
    good().write(tmp_path, "other.gguf")
    with pytest.raises(GGUFError, match=r"2 models \(model.gguf, other.gguf\); name one"):
        open_gguf(str(tmp_path))


@pytest.fixture
def typed(tmp_path: Path) -> GGUFFile:
    """A file with one value of each kind that the getters tell apart."""
    image = gb.Image(
        entries=[
            gb.u32("int", 7),
            gb.entry("negative", gb.I32, struct.pack("<i", -7)),
            gb.entry("float", gb.F32, struct.pack("<f", 1.5)),
            gb.entry("nan", gb.F32, struct.pack("<f", float("nan"))),
            gb.entry("text", gb.STRING, gb.text("x")),
            gb.entry("flag", gb.BOOL, b"\x01"),
            gb.entry("numbers", gb.ARRAY, gb.array(gb.I32, 1, bytes(4))),
            gb.entry("texts", gb.ARRAY, gb.array(gb.STRING, 1, gb.text("y"))),
        ]
    )
    return open_gguf(image.write(tmp_path))


def test_getters_return_what_is_there_or_the_default(typed: GGUFFile) -> None:
    assert typed.get_int("int") == 7
    assert typed.get_int("negative", minimum=-10) == -7
    assert typed.get_float("float") == 1.5
    assert isinstance(typed.get_float("int"), float)
    assert typed.get_str("text") == "x"
    assert typed.get_bool("flag") is True
    assert typed.get_array("numbers").tolist() == [0]
    assert typed.get_strings("texts") == ["y"]
    assert typed.get_int("none", default=3) == 3
    assert typed.get_int("none", None) is None
    assert typed.get_float("none", 0.5) == 0.5
    assert typed.get_str("none", "z") == "z"
    assert typed.get_bool("none", default=False) is False
    assert typed.get_array("none", None) is None
    assert typed.get_strings("none", default=None) is None


@pytest.mark.parametrize(
    ("getter", "key", "message"),
    [
        ("get_int", "none", "'none' is missing"),
        ("get_int", "flag", r"'flag': expected an integer, got 'True' \(bool\)"),
        ("get_int", "float", r"expected an integer, got '1.5' \(f32\)"),
        ("get_int", "negative", r"'negative': -7 is outside 0\.\."),
        ("get_float", "flag", "expected a number"),
        ("get_float", "nan", "nan is not finite"),
        ("get_str", "int", r"expected a string, got '7' \(u32\)"),
        ("get_bool", "int", "expected true or false"),
        ("get_array", "texts", "expected an array of numbers, got an array of 1 string"),
        ("get_strings", "numbers", "expected an array of strings, got an array of 1 i32"),
        ("get_strings", "text", "expected an array of strings"),
        ("tensor", "absent", "tensor 'absent' is missing"),
    ],
)
def test_getters_name_file_and_key(typed: GGUFFile, getter: str, key: str, message: str) -> None:
    with pytest.raises(GGUFError, match=message) as caught:
        getattr(typed, getter)(key)
    assert str(typed.path) in str(caught.value)


def test_real_files(data_dir: Path, stories260k: Path) -> None:
    model = open_gguf(stories260k)
    assert model.get_str("general.architecture") == "llama"
    layers = model.get_int("llama.block_count")
    gate = model.tensor(f"blk.{layers - 1}.ffn_gate.weight")
    assert gate.shape == (
        model.get_int("llama.feed_forward_length"),
        model.get_int("llama.embedding_length"),
    )
    vocabulary = open_gguf(data_dir / "vocab" / "powerinfer" / "ggml-vocab-falcon.gguf")
    assert (vocabulary.version, len(vocabulary.tensors)) == (2, 0)
    assert len(vocabulary.get_strings("tokenizer.ggml.tokens")) == 65024


def test_a_nul_in_a_name_is_not_printed_as_it_is() -> None:
    with pytest.raises(GGUFError, match=r"^a\\0b: cannot open"):
        open_gguf("a\0b")
