"""Advice on flags, commands and model names of llama.cpp and Ollama."""

from collections.abc import Iterable

__all__ = ["about_command", "about_option", "advice_for", "looks_like_model"]

_DOWNLOAD = "name a model of huggingface.co with -m hf:ORG/NAME[:QUANT][@REVISION]"
_PLACEMENT = (
    "powerinfer places neurons, not layers, on a GPU and chooses them itself: set the GPU memory "
    "with --vram-budget, such as 8GiB, or use --device cpu for no GPU"
)
_CHAT = "use `powerinfer chat` for a conversation"
_NO_LIST = "`powerinfer list` shows fetched models, `powerinfer inspect FILE` describes one"
_LEAVE_OUT = "there is nothing to set here; leave it out"

# Names as those programs spell them, and one advice for all names of a key. `bench:-p` is a flag
# of one command that others have; words without hyphens are commands.
_ADVICE: dict[str, str] = {
    "-ngl --gpu-layers --n-gpu-layers --num-gpu": _PLACEMENT,
    "-ts --tensor-split -sm --split-mode -ot --override-tensor": _PLACEMENT,
    "-cmoe --cpu-moe -ncmoe --n-cpu-moe -nkvo --no-kv-offload": _PLACEMENT,
    "-mg --main-gpu -dev": "choose the GPU with --device, such as cuda:0",
    "-hf -hfr --hf-repo -hff --hf-file -mu --model-url -dr --docker-repo": _DOWNLOAD,
    "-hft --hf-token": "set HF_TOKEN, or run `hf auth login`",
    "--offline": "set HF_HUB_OFFLINE=1; a fetched model needs no request anyway",
    "-cnv --conversation run:-i chat:-i --interactive -if --interactive-first": _CHAT,
    "-ins --instruct": _CHAT,
    "-st --single-turn": "use `powerinfer run --chat`, which answers one message",
    "-no-cnv --no-conversation": "`powerinfer run` completes raw text; leave it out",
    "-sys --system-prompt": "use --system TEXT, of `powerinfer chat` and `powerinfer run --chat`",
    "-sysf --system-prompt-file": 'use --system "$(cat FILE)" with `powerinfer chat`',
    "run:--chat-template chat:--chat-template --chat-template-file --jinja": "`powerinfer chat` "
    "and `powerinfer run --chat` use the template of the model file; leave it out",
    "-r --reverse-prompt": "use --stop TEXT",
    "-fa --flash-attn": _LEAVE_OUT,
    "-b --batch-size -ub --ubatch-size": "prompts are computed in batches of 512 tokens; leave it "
    "out",
    "--mlock": "use --no-mmap to copy the weights into memory when the model loads",
    "-tb --threads-batch": "-t sets the threads of prompts too",
    "-ctk --cache-type-k -ctv --cache-type-v": "use --kv-type f16 or --kv-type q8_0, which sets "
    "both",
    "-bf --binary-file": "use -f, which reads any bytes",
    "--no-context-shift": "old text is never dropped unless --context-shift is given; leave it out",
    "-co --color --simple-io --log-disable --no-warmup --warmup": _LEAVE_OUT,
    "--no-perf --perf -v --verbose": "figures always go to stderr; 2>/dev/null hides them",
    "--lora --mmproj": "powerinfer has nothing like it",
    "-md --model-draft": "use --draft-model FILE",
    "run:--grammar-file": "use --grammar FILE",
    "run:-j run:--json-schema-file run:-jf": "use --json-schema FILE",
    "chat:--grammar chat:--json-schema chat:--regex": "use `powerinfer run`, which has it",
    "bench:-p bench:--n-prompt": "use --prefill N",
    "bench:-n bench:--n-gen": "use --decode N",
    "bench:-r bench:--repetitions": "use --repeats N",
    "convert:--outfile": "use -o FILE",
    "tokenize:-p tokenize:--prompt detokenize:-p": "leave it out; the text needs no option",
    "perplexity:-p calibrate:-p": "the text comes from a file: use -f FILE",
    "chat:-p chat:--prompt": "messages are typed or come from stdin; `powerinfer run` takes "
    "a prompt",
    "download": "use `powerinfer pull hf:ORG/NAME[:QUANT]`",
    "push": "powerinfer uploads nothing; `hf upload` does",
    "ls ps show cp create stop": _NO_LIST,
    "remove delete": "use `powerinfer rm MODEL`",
    "server": "use `powerinfer serve`",
    "cli generate complete": "use `powerinfer run`",
    "help": "use `powerinfer --help` or `powerinfer COMMAND --help`",
    "version": "use `powerinfer --version`",
}
# First words of model names, up to the first character that is not a letter.
_FAMILIES = (
    *("bamboo", "codellama", "codestral", "deepseek", "falcon", "gemma", "gpt", "granite", "llama"),
    *("llava", "mistral", "mixtral", "nemotron", "olmo", "phi", "prosparse", "qwen", "qwq"),
    *("relullama", "smollm", "stablelm", "starcoder", "tinyllama", "turbosparse", "vicuna", "yi"),
)
# Less similar names share only a few letters.
_NEAR = 0.75


def advice_for(name: str, command: str | None = None) -> str | None:
    """Advice on a flag without its value, such as `-ngl`, or on a command; None if it is unknown.

    Underscores count as hyphens. `command` is the one in which a flag was used.
    """
    wanted = name.replace("_", "-")
    advice = {known: text for names, text in _ADVICE.items() for known in names.split()}
    return advice.get(f"{command}:{wanted}", advice.get(wanted))


def about_option(name: str, known: Iterable[str], command: str) -> str:
    """Message on an unknown option of a command, which has the `known` ones."""
    import difflib

    near = difflib.get_close_matches(name.replace("_", "-"), list(known), n=1, cutoff=_NEAR)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"no option {name}. {hint}`powerinfer {command} --help` lists the options."


def about_command(name: str, names: list[str]) -> str:
    """Message on an unknown command; `names` are those that exist."""
    advice = advice_for(name)
    if advice is not None:
        return f"no command {name!r}: {advice}"
    import difflib

    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"no command {name!r}. {hint}Commands: {', '.join(names)}."


def looks_like_model(word: str) -> bool:
    """True for names of models elsewhere: `llama3`, `qwen2.5-coder`, `x:latest`."""
    if not word or any(character.isspace() for character in word):
        return False
    name, _, tag = word.rpartition("/")[2].lower().partition(":")
    end = next((at for at, character in enumerate(name) if not character.isalpha()), len(name))
    has_tag = bool(name) and (tag == "latest" or (tag[:1].isdigit() and "b" in tag))
    return has_tag or name[:end] in _FAMILIES
