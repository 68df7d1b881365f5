"""Files of `torch.save` for tests: two that torch wrote, and parts to build wrong ones from."""

import base64
import io
import zipfile
import zlib

ARCHIVE_VALUES = (0, 3, 65536, 7)
LEGACY_VALUES = (0, 0.25, 1, 0.5)

# torch 2.13: torch.save(torch.tensor([0, 3, 65536, 7]), path)
_ARCHIVE = (
    "eNoL8GZmYWDg4GDAAAIMQgyJRckZmWWp+imJJYl6Bdk5bk58DFEooIEpuSQfqEovvrQkM6eYK74oNak0MyclviQ1rzi/"
    "KL7MiKuQQUMjgh1oYjFQZWJ6aiEjRAuXT35eejBEjKuQKYIRqMSgkDmCGUgnF5QWsnizlBSyBnozeLO0FrJ5M7YWsncm"
    "J+fn5KQml2Tm5xVz+RelpBalprhkJpdwFXJoBhVylhRyBRVy6wV4s3MsuzMrcSrQJBAOwOlJcQY1uCf10vKLchNL4stS"
    "i4qB5rs5KaH5FRswBNm1/f2dZpDrGfHaJcVgjrALGhbxiTmZ6Xm5qXklbk7GRFiHAcxMQA6wLy98yQS0ggmvAwQZ7OEO"
    "SKosSc0HhZ+bkzU59sJATmZJSU4qyA2tto8l2YC2sOF1Ax+DHUqq0jdwc7KiwAEwc5nhNjCCSXYoD+SyVyL3rikA2Qp4"
    "XcbPoAx3GTwJyBNymjEXyIaL89JDCYe/HIMRIgGAPV+cWpQJTAFViaAEHZ+Z4uakR2JYGJqaG1kYWlqaGhpamJqYmRgb"
    "GJkZmJiZGVsYmBsZmBsbACUtLCzMQK6cNj9ipQbQHRpgVzKCHAt3J3J2EcBwOXo5gK4bOQOIo+h8iqQbLYOhG4KciKVQ"
    "DAlkZMCTc9DNQU6IgijmXEIyB54B0LUjpxY+FO1hTAxoaRddL3I64EfR+wFJLw7/I0ePHIrmIGYGAgknwJuNTQeWzJh1"
    "4TrZ0ejzkNzB8IMZlj3YwFLHWRGZJ8CblQ2ihx2sHqIWAHLyU6w="
)
ARCHIVE = zlib.decompress(base64.b64decode(_ARCHIVE))
"""A zip archive of an i64 tensor, `ARCHIVE_VALUES`."""

# torch 2.13: torch.save(..., _use_new_zipfile_serialization=False)
LEGACY = (
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    b"\x80\x02M\xe9\x03."
    b"\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\r\x00\x00\x00little_end"
    b"ianq\x02\x88X\n\x00\x00\x00type_sizesq\x03}q\x04(X\x05\x00\x00\x00shortq\x05K\x02X\x03"
    b"\x00\x00\x00intq\x06K\x04X\x04\x00\x00\x00longq\x07K\x04uu."
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01ctorch\n"
    b"BFloat16Storage\nq\x02X\x0e\x00\x00\x0093993995905136q\x03X\x03\x00\x00\x00cpuq\x04K"
    b"\x04Ntq\x05QK\x00K\x04\x85q\x06K\x01\x85q\x07\x89ccollections\nOrderedDict\nq\x08)Rq\tt"
    b"q\nRq\x0b."
    b"\x80\x02]q\x00X\x0e\x00\x00\x0093993995905136q\x01a.\x04\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x80>\x80?\x00?"
)
"""The older container of a bf16 tensor, `LEGACY_VALUES`."""


def text(value: str) -> bytes:
    """Opcode of a text."""
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def integer(value: int) -> bytes:
    """Opcode of a whole number."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def name(module: str, item: str) -> bytes:
    """Opcode of a name in a module."""
    return f"c{module}\n{item}\n".encode()


def numbers(*values: int) -> bytes:
    """Opcodes of a tuple."""
    return b"(" + b"".join(map(integer, values)) + b"t"


def storage(kind: str = "FloatStorage", num_elements: int = 4, key: str = "0") -> bytes:
    """Opcodes of a persistent id."""
    parts = [text("storage"), name("torch", kind), text(key), text("cpu"), integer(num_elements)]
    return b"(" + b"".join(parts) + b"tQ"


def tensor(
    stored: bytes | None = None,
    start: bytes = b"K\x00",
    shape: bytes = b"K\x04\x85",
    strides: bytes = b"K\x01\x85",
    function: bytes | None = None,
) -> bytes:
    """A pickle of a tensor of four f32, with anything replaced."""
    parts = [
        name("torch._utils", "_rebuild_tensor_v2") if function is None else function,
        b"(",
        storage() if stored is None else stored,
        start,
        shape,
        strides,
        b"\x89",
        name("collections", "OrderedDict"),
        b")RtR.",
    ]
    return b"\x80\x02" + b"".join(parts)


def archive(
    pickle: bytes,
    data: bytes,
    *,
    folder: str = "archive",
    byteorder: str | None = "little",
    method: int = zipfile.ZIP_STORED,
    key: str = "0",
) -> bytes:
    """A zip archive as torch makes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr(f"{folder}/data.pkl", pickle)
        if byteorder is not None:
            file.writestr(f"{folder}/byteorder", byteorder)
        file.writestr(f"{folder}/data/{key}", data)
        file.writestr(f"{folder}/version", "3\n")
    return buffer.getvalue()
