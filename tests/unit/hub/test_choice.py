"""Which files of a repository a reference means."""

import pytest

from powerinfer import HubError
from powerinfer.hub.choice import choose_checkpoint, choose_model, label_of, models_in
from powerinfer.hub.listing import Listing, RemoteFile
from powerinfer.hub.names import parse_reference

COMMIT = "0" * 40


def listing(*paths: str) -> Listing:
    return Listing("o/n", COMMIT, tuple(RemoteFile(path, 1 << 30) for path in sorted(paths)))


def chosen(text: str, *paths: str) -> list[str]:
    found = choose_model(listing(*paths), parse_reference(text))
    return [file.path for file in found.files]


QUANTS = ("m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-q8_0.gguf", "README.md")


def test_a_single_model_needs_no_quant() -> None:
    assert chosen("hf:o/n", "m.gguf", "config.json", "README.md") == ["m.gguf"]


@pytest.mark.parametrize(
    ("quant", "path"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q8_0", "m-q8_0.gguf"),
        ("m-q4_k_s", "m-Q4_K_S.gguf"),
        ("M-Q4_K_S.GGUF", "m-Q4_K_S.gguf"),
    ],
)
def test_quants_match_whatever_their_case(quant: str, path: str) -> None:
    assert chosen(f"hf:o/n:{quant}", *QUANTS) == [path]


@pytest.mark.parametrize("quant", ["", ":m"])
def test_several_that_fit_are_listed_and_none_is_guessed(quant: str) -> None:
    with pytest.raises(HubError) as caught:
        chosen(f"hf:o/n{quant}@v1", *QUANTS)
    message = str(caught.value)
    assert "3 models fit: Q4_K_M (1.00 GiB), Q4_K_S (1.00 GiB), q8_0 (1.00 GiB)" in message
    assert message.endswith("as in hf:o/n:Q4_K_M@v1")


@pytest.mark.parametrize("quant", ["Q4", "Q4_K", "K_M.gg", "5_1", "Q5_K_M"])
def test_a_quant_that_no_file_has(quant: str) -> None:
    with pytest.raises(HubError, match=r"no model fits; there are: Q4_K_M \(1.00 GiB\), Q4_K_S"):
        chosen(f"hf:o/n:{quant}", *QUANTS)


def test_a_whole_name_goes_before_a_part_of_one() -> None:
    paths = ("a/m-Q4_0.gguf", "b/m-Q4_0.gguf", "Q4_0.gguf")
    assert chosen("hf:o/n:q4_0", *paths) == ["Q4_0.gguf"]
    assert chosen("hf:o/n:b/m-Q4_0.gguf", *paths) == ["b/m-Q4_0.gguf"]
    assert chosen("hf:o/n:b/m-q4_0", *paths) == ["b/m-Q4_0.gguf"]


PARTS = tuple(f"Q6_K/m-Q6_K-0000{number}-of-00003.gguf" for number in (1, 2, 3))


def test_all_parts_of_a_split_model_in_order() -> None:
    assert chosen("hf:o/n:Q6_K", *reversed(PARTS), *QUANTS) == list(PARTS)
    assert chosen("hf:o/n:m-q6_k", *PARTS) == list(PARTS)
    assert chosen("hf:o/n", *PARTS) == list(PARTS)


def test_a_split_model_without_all_parts_is_none() -> None:
    assert chosen("hf:o/n", *PARTS[:2], "m-Q4_0.gguf") == ["m-Q4_0.gguf"]
    with pytest.raises(HubError, match="none is a whole model"):
        chosen("hf:o/n", *PARTS[1:])


def test_powerinfers_folder_comes_with_the_model_beside_it() -> None:
    statistics = ("activation/activation_0.pt", "activation/activation_1.pt")
    others = ("sub/activation/activation_0.pt", "activation/deep/x.pt")
    assert chosen("hf:o/n", "m.powerinfer.gguf", *statistics, *others) == [
        "m.powerinfer.gguf",
        *statistics,
    ]
    assert chosen("hf:o/n", "sub/m.gguf", *statistics, others[0]) == ["sub/m.gguf", others[0]]
    both = ("m.powerinfer.gguf", "m.q4.powerinfer.gguf")
    assert chosen("hf:o/n:q4", *both) == ["m.q4.powerinfer.gguf"]
    assert chosen("hf:o/n:m.powerinfer.gguf", *both) == ["m.powerinfer.gguf"]


def test_gguf_files_that_are_no_language_model_do_not_count() -> None:
    others = ("mmproj-F16.gguf", "m-mmproj-F16.gguf", "imatrix_unsloth.gguf", "m.imatrix.gguf")
    assert chosen("hf:o/n", "m-imatrix-Q4_0.gguf", *others) == ["m-imatrix-Q4_0.gguf"]
    with pytest.raises(HubError, match="projectors of images"):
        chosen("hf:o/n", *others)


def test_labels_are_short_and_mean_one_model() -> None:
    paths = ("a-Q4_0.gguf", "b-Q4_0.gguf", "b-IQ3_XXS.gguf", "b-BF16.gguf", "b.gguf", *PARTS)
    models = models_in(listing(*paths))
    labels = [label_of(model.path, [each.path for each in models]) for model in models]
    assert labels == ["Q6_K", "a-Q4_0.gguf", "BF16", "IQ3_XXS", "b-Q4_0.gguf", "b.gguf"]
    for label, model in zip(labels, models, strict=True):
        assert chosen(f"hf:o/n:{label}", *paths) == [part.path for part in model.parts]


def test_a_repository_without_gguf_names_convert() -> None:
    with pytest.raises(HubError, match=r"powerinfer convert hf:o/n@v2 -o FILE"):
        chosen("hf:o/n:Q4_0@v2", "config.json", "model.safetensors")
    with pytest.raises(HubError, match="neither a GGUF file nor a checkpoint"):
        chosen("hf:o/n", "README.md")


def checkpoint(text: str, *paths: str) -> set[str]:
    return {file.path for file in choose_checkpoint(listing(*paths), parse_reference(text))}


SETTINGS = {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"}


def test_a_checkpoint_has_settings_and_weights() -> None:
    weights = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    index = {"model.safetensors.index.json"}
    others = ("consolidated.safetensors", "pytorch_model.bin", "README.md", "onnx/model.onnx")
    statistics = {"activation/activation_0.pt"}
    found = checkpoint("hf:o/n", *SETTINGS, *weights, *index, *statistics, *others)
    assert found == SETTINGS | weights | index | statistics


def test_weights_come_last() -> None:
    found = choose_checkpoint(
        listing("a.safetensors", "config.json", "vocab.json"), parse_reference("hf:o/n")
    )
    assert found[-1].path == "a.safetensors"


def test_bin_files_only_without_safetensors() -> None:
    bins = {"pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"}
    found = checkpoint("hf:o/n", "config.json", *bins, "training_args.bin", "optimizer.bin")
    assert found == {"config.json", *bins}
    assert checkpoint("hf:o/n", "config.json", "weights.safetensors", *bins) == {
        "config.json",
        "weights.safetensors",
    }


@pytest.mark.parametrize(
    ("text", "paths", "message"),
    [
        ("hf:o/n", ("m.gguf",), "powerinfer pull hf:o/n"),
        ("hf:o/n", ("config.json",), "expected config.json beside safetensors"),
        ("hf:o/n", ("model.safetensors",), "expected config.json beside safetensors"),
        ("hf:o/n:Q4_0", ("config.json", "model.safetensors"), "leave out :Q4_0"),
    ],
)
def test_what_is_no_checkpoint(text: str, paths: tuple[str, ...], message: str) -> None:
    with pytest.raises(HubError, match=message):
        checkpoint(text, *paths)
