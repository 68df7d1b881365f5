"""Every format against the `gguf` package, bit for bit, and the contract all formats share."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from powerinfer import quant
from powerinfer.errors import GGUFError, NumericsError, ShapeError, UnsupportedError
from powerinfer.gguf import encode_tensor, write_gguf
from random_blocks import half_fields

gguf = pytest.importorskip("gguf", reason="the test extra (gguf) is not installed")

NAMES = quant.format_names()
INTERNAL = quant.internal_format_names()
ENCODERS = ["bf16", "f16", "f32", "mxfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
ODD_HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01],
    np.uint16,
)
INTERNAL_HALF_FIELDS = {
    "lowbit2": list(range(0, 16, 2)),
    "lowbit3": list(range(0, 16, 2)),
    "sign": [32],
}


def same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> bool:
    both_nan = np.isnan(ours) & np.isnan(theirs)
    return bool(np.all(both_nan | (ours.view(np.uint32) == theirs.view(np.uint32))))


def random_blocks(name: str, num_blocks: int) -> npt.NDArray[np.uint8]:
    """Random bytes; in every third block the scale fields are subnormal, huge, infinite or NaN."""
    fmt = quant.get_format(name)
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 256, (num_blocks, fmt.block_bytes), np.uint8)
    for start in INTERNAL_HALF_FIELDS.get(name, half_fields(name)):
        odd = rng.choice(ODD_HALVES, len(blocks[::3]))
        blocks[::3, start : start + 2] = odd.view(np.uint8).reshape(-1, 2)
    return blocks


def test_formats_are_listed_without_a_table() -> None:
    quant.get_format("f32")  # importing a plug-in must not shadow a public name
    files = Path(quant.__file__).parent.joinpath("formats").glob("[!_]*.py")
    assert list(INTERNAL) == ["lowbit2", "lowbit3", "sign"]
    assert list(NAMES) == sorted({file.stem for file in files} - {*INTERNAL})


@pytest.mark.parametrize("name", NAMES)
def test_layout_agrees_with_the_type_table_and_the_gguf_package(name: str) -> None:
    fmt = quant.get_format(name)
    assert fmt.name == name
    assert fmt.ggml_type is not None
    listed = quant.type_of_name(name)
    assert listed is not None
    assert (fmt.ggml_type, fmt.block_size, fmt.block_bytes) == (
        listed.ggml_type,
        listed.block_size,
        listed.block_bytes,
    )


def test_type_table_agrees_with_the_gguf_package() -> None:
    for theirs, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        ours = quant.type_of_id(int(theirs))
        assert ours is not None, theirs
        if theirs.name == "Q8_1":  # two f32 fields there, two halves in files since 2024
            continue
        if theirs.name == "Q8_K":
            assert ours.block_bytes == 292
            continue
        assert (ours.name, ours.block_size, ours.block_bytes) == (
            theirs.name.lower(),
            block_size,
            block_bytes,
        )


@pytest.mark.parametrize("name", NAMES)
def test_decode_equals_the_gguf_package_bit_for_bit(name: str) -> None:
    fmt = quant.get_format(name)
    data = random_blocks(name, 3000).reshape(30, 100 * fmt.block_bytes)
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(data, gguf.GGMLQuantizationType(fmt.ggml_type or 0))
    ours = fmt.decode(data)
    assert ours.shape == (30, 100 * fmt.block_size)
    assert same_bits(ours, np.asarray(theirs, np.float32).reshape(ours.shape))


def every_mxfp4_block() -> npt.NDArray[np.uint8]:
    """All 256 exponents with every pair of codes that shares a byte: u8[256, 16, 17]."""
    blocks = np.empty((256, 16, 17), np.uint8)
    blocks[..., 0] = np.arange(256)[:, np.newaxis]
    blocks[..., 1:] = np.arange(256).reshape(16, 16)
    return blocks


def test_mxfp4_decodes_every_exponent_and_code_as_the_gguf_package_does() -> None:
    blocks = every_mxfp4_block()
    ours = quant.get_format("mxfp4").decode(blocks)
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(blocks.reshape(256, -1), gguf.GGMLQuantizationType.MXFP4)
    assert same_bits(ours, theirs.reshape(ours.shape))
    values = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
    for exponent in (0, 1, 2, 3, 127, 252):
        wanted = values[blocks[exponent, :, 1:] & 15] * 2.0 ** (exponent - 128)
        assert np.array_equal(ours[exponent, :, :16], wanted)
    assert np.isfinite(ours[:253]).all()
    assert not np.signbit(ours[ours == 0]).any()


def test_mxfp4_encodes_what_it_decoded_and_zeros_as_zero_bytes() -> None:
    fmt = quant.get_format("mxfp4")
    values = fmt.decode(every_mxfp4_block()[:253])
    assert same_bits(fmt.decode(fmt.encode(values)), values)
    assert not fmt.encode(np.zeros((2, 64), np.float32)).any()
    assert not fmt.encode(np.full((1, 32), -0.0, np.float32)).any()


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 3e4])
def test_encode_equals_the_gguf_package(name: str, scale: float) -> None:
    fmt = quant.get_format(name)
    rng = np.random.default_rng(11)
    values = (rng.standard_normal((64, 256)) * scale).astype(np.float32)
    values[0] = 0
    values[1, ::2] = values[1, 0]  # many equal largest magnitudes: the first one decides the sign
    values[2] = np.round(values[2] / np.float32(scale) * 4) * np.float32(scale)  # exact ties
    values[3, 0] = -np.abs(values[3]).max()
    values = values.clip(-fmt.encode_limit, fmt.encode_limit)
    with np.errstate(all="ignore"):
        theirs = gguf.quantize(values, gguf.GGMLQuantizationType(fmt.ggml_type or 0))
    assert np.array_equal(fmt.encode(values), np.ascontiguousarray(theirs).view(np.uint8))


@pytest.mark.parametrize("name", (*NAMES, *INTERNAL))
def test_decode_in_steps_equals_decode_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = quant.get_format(name)
    data = random_blocks(name, 50)
    whole = fmt.decode(data)
    monkeypatch.setattr("powerinfer.quant.format._ELEMENTS_PER_STEP", 3 * fmt.block_size)
    assert same_bits(whole, fmt.decode(data))


@pytest.mark.parametrize("name", (*NAMES, *INTERNAL))
def test_decode_reads_strided_input_and_empty_rows(name: str) -> None:
    fmt = quant.get_format(name)
    data = random_blocks(name, 8)
    assert same_bits(fmt.decode(data[::2]), fmt.decode(data)[::2])
    assert fmt.decode(np.empty((0, fmt.block_bytes), np.uint8)).shape == (
        0,
        fmt.block_size,
    )
    assert fmt.decode(np.empty((3, 0), np.uint8)).shape == (3, 0)


@pytest.mark.parametrize(
    "name", [name for name in (*NAMES, *INTERNAL) if name not in ("f32", "f16", "bf16")]
)
def test_partial_blocks_are_refused(name: str) -> None:
    fmt = quant.get_format(name)
    with pytest.raises(ShapeError, match=name):
        fmt.decode(np.zeros((2, fmt.block_bytes + 1), np.uint8))
    with pytest.raises(ShapeError, match=str(fmt.block_size)):
        fmt.num_bytes(fmt.block_size + 1)


def test_formats_without_an_encoder_name_those_with_one() -> None:
    fmt = quant.QuantFormat("q1", None, 32, 4, quant.get_format("q8_0").decode_blocks)
    with pytest.raises(
        UnsupportedError, match="q1 has no encoder; encoders: bf16, f16, f32, mxfp4"
    ):
        fmt.encode(np.zeros((1, 256), np.float32))
    with pytest.raises(UnsupportedError, match="q1 has no encoder"):
        fmt.max_error(np.zeros((1, 256), np.float32))


@pytest.mark.parametrize("name", [*ENCODERS[3:], *INTERNAL])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_block_encoders_refuse_what_would_spoil_a_block(name: str, bad: float) -> None:
    if name == "mxfp4" and np.isfinite(bad):
        bad = np.inf  # its scales reach as far as f32
    values = np.zeros((2, 256), np.float32)
    values[1, 5] = bad
    with pytest.raises(NumericsError, match=name):
        quant.get_format(name).encode(values)


def test_encode_wants_f32() -> None:
    with pytest.raises(ShapeError, match="float64"):
        quant.get_format("f32").encode(np.zeros((2, 2)))  # type: ignore[arg-type]


def test_bf16_keeps_nan_and_infinity() -> None:
    fmt = quant.get_format("bf16")
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000], np.uint32)
    back = fmt.decode(fmt.encode(bits.view(np.float32)))
    assert np.isnan(back[:2]).all()
    assert back[2:].tolist() == [np.inf, -np.inf]


def test_types_we_cannot_compute_with_are_known_and_refused() -> None:
    known = quant.type_of_name("iq2_xxs")
    assert known is not None
    with pytest.raises(UnsupportedError, match=r"'iq2_xxs' is not supported.*q4_k, q5_0"):
        quant.get_format(known.name)
    assert quant.type_of_id(known.ggml_type) is known
    assert quant.type_of_id(4711) is None
    with pytest.raises(UnsupportedError, match="Did you mean 'q4_k'"):
        quant.get_format("q4_km")


def written_weight(name: str, block: npt.NDArray[np.uint8], place: int) -> float:
    """One number of a superblock, by the words of the layout."""
    j, v, k = place // 32, place % 32 // 4, place % 4
    if name == "sign":
        d = float(block[32:34].view("<f2")[0])
        return -d if block[place // 8] >> place % 8 & 1 else d
    step = float(block[:16].view("<f2")[j])
    code = int(block[16 + 32 * (v % 2) + 4 * j + k] >> 2 * (v // 2) & 3)
    if name == "lowbit2":
        return step * (code - 1.5)
    return step * (code + 4 * int(block[80 + 4 * j + k] >> v & 1) - 3.5)


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_formats_decode_as_their_layout_says(name: str) -> None:
    blocks = random_blocks(name, 6)[1:3]
    decoded = quant.get_format(name).decode(blocks)
    for block, numbers in zip(blocks, decoded, strict=True):
        assert numbers.tolist() == [written_weight(name, block, i) for i in range(256)]


@pytest.mark.parametrize(("name", "share"), [("lowbit2", 0.12), ("lowbit3", 0.038), ("sign", 0.37)])
def test_internal_formats_keep_most_of_a_normal_distribution(name: str, share: float) -> None:
    """Mean squared errors of the best fixed quantizers: 0.119, 0.0374 and 0.363 of the variance."""
    fmt = quant.get_format(name)
    values = np.random.default_rng(5).standard_normal((400, 256)).astype(np.float32) * 0.03
    error = fmt.decode(fmt.encode(values)) - values
    assert float(np.mean(error**2) / np.mean(values**2)) < share


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_formats_have_no_id_and_no_file_takes_them(name: str, tmp_path: Path) -> None:
    fmt = quant.get_format(name)
    assert (fmt.name, fmt.ggml_type, quant.type_of_name(name)) == (name, None, None)
    entry = encode_tensor("copy", np.zeros((1, 256), np.float32), name)
    with pytest.raises(GGUFError, match=f"'{name}' cannot be stored in a file"):
        write_gguf(tmp_path / "model.gguf", {}, [entry])
    with pytest.raises(UnsupportedError) as raised:
        quant.get_format("nonsense")
    assert name not in str(raised.value)


def test_zeros_that_pad_a_row_of_signs_cancel() -> None:
    fmt = quant.get_format("sign")
    values = np.zeros((1, 256), np.float32)
    values[0, :100] = np.linspace(1, 2, 100)
    decoded = fmt.decode(fmt.encode(values))
    assert float(decoded[0, 100:].sum()) == 0
    assert float(decoded[0, 0]) == pytest.approx(1.5, rel=1e-3)
