"""`python -m powerinfer` and the installed `powerinfer` script.

Imports only `sys` outside of `main`, so that `main` catches Ctrl-C from the start.
"""

import sys
from typing import NoReturn

__all__ = ["main"]

EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line; Ctrl-C during its import ends it without a traceback too."""
    try:
        from powerinfer.cli.main import main as command_line
        from powerinfer.cli.signals import terminate_in_order

        terminate_in_order()
        command_line(prog_name="powerinfer")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


if __name__ == "__main__":
    main()
