"""`python -m powerinfer.cli`: the same as the installed `powerinfer` script."""

from powerinfer.cli.main import main

if __name__ == "__main__":
    main(prog_name="powerinfer")
