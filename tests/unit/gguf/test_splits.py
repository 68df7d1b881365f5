"""A model in several files opens through any of them, and only when they belong together."""

from pathlib import Path

import numpy as np
import pytest

from powerinfer.errors import GGUFError
from powerinfer.gguf import encode_tensor, open_gguf, write_gguf

NUM_PARTS = 3


def write_part(folder: Path, number: int, **changes: object) -> Path:
    """Write part `number` (from 0) of a model with one tensor per part."""
    metadata: dict[str, object] = {
        "split.no": np.uint16(number),
        "split.count": np.uint16(NUM_PARTS),
        "split.tensors.count": np.int32(NUM_PARTS),
    }
    if number == 0:
        metadata["general.architecture"] = "llama"
    options = {"magic": "GGUF", "tensor": f"t{number}", **changes}
    metadata.update({key: value for key, value in changes.items() if key.startswith("split.")})
    path = folder / f"m-{number + 1:05}-of-{NUM_PARTS:05}.gguf"
    values = np.full((2, 4), number, np.float32)
    tensor = encode_tensor(str(options["tensor"]), values)
    write_gguf(path, metadata, [tensor], magic=str(options["magic"]))
    return path


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The three parts of a good model."""
    return [write_part(tmp_path, number) for number in range(NUM_PARTS)]


@pytest.mark.parametrize("through", [0, 1, 2])
def test_any_part_opens_all(parts: list[Path], through: int) -> None:
    file = open_gguf(parts[through])
    assert file.paths == tuple(parts)
    assert list(file.tensors) == ["t0", "t1", "t2"]
    assert file.get_str("general.architecture") == "llama"
    assert file.tensors["t2"].decode().tolist() == [[2.0] * 4] * 2
    assert file.tensors["t2"].file == parts[2]


def test_the_folder_is_one_model(parts: list[Path]) -> None:
    assert open_gguf(parts[0].parent).paths == tuple(parts)


def test_one_part_is_missing(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(GGUFError, match=r"m-00002-of-00003\.gguf: no such file"):
        open_gguf(parts[0])


def test_a_renamed_part(parts: list[Path]) -> None:
    renamed = parts[0].with_name("model.gguf")
    parts[0].rename(renamed)
    with pytest.raises(GGUFError, match=r"one of 3 parts, but its name .* restore the original"):
        open_gguf(renamed)


def test_a_name_with_another_count(parts: list[Path]) -> None:
    renamed = parts[0].with_name("m-00001-of-00004.gguf")
    parts[0].rename(renamed)
    with pytest.raises(GGUFError, match=r"name says 4 parts, .* says 3"):
        open_gguf(renamed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split.no": np.uint16(0)}, "expected to be part 1 of 3, its metadata says part 0 of 3"),
        ({"split.count": np.uint16(2)}, "its metadata says part 1 of 2"),
        ({"split.no": "one"}, r"'split.no': expected a count, got 'one'"),
        ({"tensor": "t0"}, "tensor 't0' is in two parts"),
        ({"magic": "PWRI"}, "magic PWRI differs"),
    ],
)
def test_parts_that_do_not_belong_together(
    parts: list[Path], changes: dict[str, object], message: str
) -> None:
    write_part(parts[1].parent, 1, **changes)
    with pytest.raises(GGUFError, match=message):
        open_gguf(parts[0])


def test_a_wrong_number_of_tensors(parts: list[Path]) -> None:
    write_part(parts[0].parent, 0, **{"split.tensors.count": np.int32(9)})
    with pytest.raises(GGUFError, match="hold 3 tensors, expected 9"):
        open_gguf(parts[2])


def test_a_split_name_alone_makes_no_split(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    write_gguf(path, {}, [encode_tensor("a", np.zeros(4, np.float32))])
    assert open_gguf(path).paths == (path,)
