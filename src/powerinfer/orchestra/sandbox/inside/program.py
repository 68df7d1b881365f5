"""Runs the Python program that stdin holds, as an interactive session would: a last value is shown.

Run as `python -I -S program.py`. Nothing of this package can be imported here.
"""

import ast
import builtins
import linecache
import sys
import traceback
import types

_NAME = "program.py"


def main() -> None:
    """Run it as `__main__`; its errors end this process as usual, with a traceback."""
    text = sys.stdin.read()
    # Tracebacks show the program's lines.
    linecache.cache[_NAME] = (len(text), None, text.splitlines(keepends=True), _NAME)
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    try:
        _execute(text)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as the interpreter does, without our frames
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        sys.exit(1)


def _execute(text: str) -> None:
    # Not ast.parse, whose own frame a traceback would show.
    parsed = compile(text, _NAME, "exec", ast.PyCF_ONLY_AST)
    assert isinstance(parsed, ast.Module)  # noqa: S101 - what "exec" means
    last = parsed.body[-1] if parsed.body else None
    if isinstance(last, ast.Expr):
        parsed.body.pop()
    scope = types.ModuleType("__main__").__dict__
    exec(compile(parsed, _NAME, "exec"), scope)
    if isinstance(last, ast.Expr):
        sys.displayhook(eval(compile(ast.Expression(last.value), _NAME, "eval"), scope))


if __name__ == "__main__":
    main()
