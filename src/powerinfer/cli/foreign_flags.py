"""What to use here instead of flags that users of llama.cpp and Ollama know."""

from powerinfer.engine.default_model import WHERE_MODELS_COME_FROM

__all__ = ["advice_for"]

_DOWNLOAD = f"{WHERE_MODELS_COME_FROM}, and name it with -m"
_PLACEMENT = (
    "powerinfer places neurons rather than layers on a GPU and plans by itself which: set the GPU "
    "memory to use with --vram-budget, such as 8GiB, or use --device cpu for no GPU"
)
_CHAT = "use `powerinfer chat` for a conversation"
_LEAVE_OUT = "there is nothing to set here; leave it out"

# Names as their programs spell them, and the advice for all of a line.
_ADVICE: dict[str, str] = {
    "-ngl --gpu-layers --n-gpu-layers --num-gpu": _PLACEMENT,
    "-ts --tensor-split -sm --split-mode -ot --override-tensor": _PLACEMENT,
    "-cmoe --cpu-moe -ncmoe --n-cpu-moe -nkvo --no-kv-offload": _PLACEMENT,
    "-mg --main-gpu -dev": "choose the GPU with --device, such as cuda:0",
    "-hf -hfr --hf-repo -hff --hf-file -mu --model-url -dr --docker-repo": _DOWNLOAD,
    "-hft --hf-token --offline": _DOWNLOAD,
    "-cnv --conversation -i --interactive -if --interactive-first -ins --instruct": _CHAT,
    "-no-cnv --no-conversation -st --single-turn": "`powerinfer run` writes one text and ends; "
    "leave it out",
    "-sys --system-prompt": "use `powerinfer chat --system TEXT`",
    "-sysf --system-prompt-file": 'use `powerinfer chat --system "$(cat FILE)"`',
    "--chat-template --chat-template-file --jinja": "`powerinfer chat` uses the template of the "
    "model file; leave it out",
    "-r --reverse-prompt": "use --stop TEXT",
    "-fa --flash-attn": _LEAVE_OUT,
    "-b --batch-size -ub --ubatch-size": "prompts are computed in batches of 512 tokens; leave it "
    "out",
    "--mlock": "use --no-mmap to copy the weights into memory when the model loads",
    "-tb --threads-batch": "-t sets the threads of prompts too",
    "-ctk --cache-type-k -ctv --cache-type-v": "use --kv-type f16 or --kv-type q8_0, which is for "
    "keys and values",
    "-bf --binary-file": "use -f, which reads any bytes",
    "--no-context-shift": "old text is never dropped unless --context-shift is given; leave it out",
    "-co --color --simple-io --log-disable --no-warmup --warmup": _LEAVE_OUT,
    "--no-perf --perf -v --verbose": "figures always go to stderr; 2>/dev/null hides them",
    "--temperature": "use --temp",
    "--lora --mmproj -md --model-draft": "powerinfer has nothing like it yet",
}


def advice_for(flag: str) -> str | None:
    """One sentence on what to do instead of a flag; None for one that nobody knows.

    Args:
        flag: without a value, such as `-ngl`; underscores count as hyphens.
    """
    wanted = flag.replace("_", "-")
    return next((advice for names, advice in _ADVICE.items() if wanted in names.split()), None)
