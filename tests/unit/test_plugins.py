"""Plug-in folders: the file name is the key, nothing is imported before it is asked for."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a good plug-in, one that fails to import, and a private helper."""
    package = tmp_path / "plugin_folder_under_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_helper.py").write_text("")
    (package / "silver.py").write_text("THING = 'shiny'\n")
    (package / "broken.py").write_text("import a_module_that_does_not_exist\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package.name
    for module in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[module]
    _plugins.keys.cache_clear()


def test_keys_are_file_names_and_import_nothing(folder: str) -> None:
    assert _plugins.keys(folder) == ("broken", "silver")
    assert f"{folder}.silver" not in sys.modules
    assert f"{folder}.broken" not in sys.modules


def test_load_imports_one_plug_in_only(folder: str) -> None:
    assert _plugins.load(folder, "silver", "THING", what="metal") == "shiny"
    assert f"{folder}.broken" not in sys.modules


def test_unknown_key_lists_near_miss_and_all_others(folder: str) -> None:
    near_miss = r"metal 'sliver' is not supported\. Did you mean 'silver'\? "
    with pytest.raises(UnsupportedError, match=near_miss + "Supported: broken, silver"):
        _plugins.load(folder, "sliver", "THING", what="metal")


@pytest.mark.parametrize("key", ["_helper", "__init__", "..errors", "silver.THING", ""])
def test_only_listed_files_load(folder: str, key: str) -> None:
    with pytest.raises(UnsupportedError, match="Supported: broken, silver"):
        _plugins.load(folder, key, "THING", what="metal")


def test_import_error_inside_a_plug_in_stays_one(folder: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_does_not_exist"):
        _plugins.load(folder, "broken", "THING", what="metal")


def test_a_plug_in_without_the_export_is_a_bug_not_a_choice(folder: str) -> None:
    with pytest.raises(AttributeError, match="OTHER"):
        _plugins.load(folder, "silver", "OTHER", what="metal")


@pytest.mark.parametrize("package", ["no_such_package_here", "powerinfer.errors"])
def test_a_folder_that_is_none(package: str) -> None:
    with pytest.raises(ImportError):
        _plugins.keys(package)
