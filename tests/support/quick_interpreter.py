"""Pytest plug-in: Triton's interpreter leaves out work without effect, over half of its time.

Where nothing is asserted it still computes whether integers overflow. And in every function that a
kernel calls it prepares `triton.language` anew, by looking through some 500 names.
"""

import sys
from dataclasses import replace
from typing import Any


def pytest_runtest_setup() -> None:
    """Mend the interpreter once something has imported it: whoever is first chooses its options."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    # Older versions never restore what they prepare, so a launch does not look unlike a call.
    if interpreter is None or not hasattr(interpreter, "_LangPatchScope"):
        return
    builder = interpreter.interpreter_builder
    if builder.options.sanitize_overflow and not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
        _prepare_once(interpreter)


def _prepare_once(interpreter: Any) -> None:
    """Skip it in functions that find the language as the launch before them has left it."""
    prepare, language = interpreter._patch_lang, interpreter.tl
    is_builtin = language.core.is_builtin

    def prepare_once(fn: Any) -> Any:
        # A launch restores `triton.language`, and nothing restores `triton.language.core`.
        if is_builtin(language.load) or is_builtin(language.core.load):
            return prepare(fn)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = prepare_once
