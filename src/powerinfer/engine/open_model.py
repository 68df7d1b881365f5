"""What every use of an `LLM` stands on: a loaded model, and the engine that computes its texts."""

from types import TracebackType
from typing import NoReturn, Self

from powerinfer.engine.shared_engine import SharedEngine
from powerinfer.errors import PowerInferError, UnsupportedError
from powerinfer.loading.loader import LoadedModel, Progress
from powerinfer.loading.step import TokenSequence
from powerinfer.options.options import CPU

__all__ = ["OpenModel"]


class OpenModel:
    """A model from loading to closing; `LLM` inherits it through `ScoringMethods`."""

    @classmethod
    def of(cls, loaded: LoadedModel) -> Self:
        """An `LLM` that runs what was loaded, maybe by another one; see `share`.

        Raises:
            PowerInferError: it is something else.
            UnsupportedError: a part of the model lies on a GPU.
        """
        if not isinstance(loaded, LoadedModel):
            raise PowerInferError(f"LLM.of takes what another LLM has loaded, got {loaded!r:.60}")
        if loaded.device != CPU:
            raise UnsupportedError(
                "a model that lies on a GPU in part cannot be shared, because the plan of what "
                "lies there has room for one context",
                remedy="load it a second time, or on the CPU alone ({device='cpu'})",
            )
        llm = cls.__new__(cls)
        llm._start(loaded)
        return llm

    def _start(self, loaded: LoadedModel, reading: Progress | None = None) -> None:
        self._shared = SharedEngine(loaded, reading)
        self._loaded: LoadedModel | None = loaded

    def __enter__(self) -> Self:
        self.loaded  # noqa: B018  refuses a model that was closed
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(
            "an LLM cannot be pickled or copied, since it consists of threads and mapped memory: "
            "load the model again in the other process, or use share() for a second one in this"
        )

    @property
    def loaded(self) -> LoadedModel:
        """What was loaded: file, configuration, tokenizer, and what runs it.

        Raises:
            PowerInferError: the model was closed, or loaded by the process that forked this one.
        """
        self._shared.check_process()
        # Read once: another thread may close it.
        loaded = self._loaded
        if loaded is None:
            raise PowerInferError("this LLM was closed; make a new one")
        return loaded

    def share(self) -> Self:
        """A second `LLM` on the same weights, with an engine of its own.

        It has its own keys and values (memory for one more context). Steps of the two take turns;
        each computes what it would alone, to the bit. The weights are freed when both are closed.
        `observe` is called for the steps of both, `reading` for prompts of the first alone.

        Raises:
            UnsupportedError: a part of the model lies on a GPU.
        """
        return self.of(self.loaded)

    def close(self) -> None:
        """Give the memory back at once; the object cannot be used afterwards.

        Any thread may call it. It waits for the step that is being computed, then ends every
        stream, even one that is kept, and every call that waits or computes. Results of
        `loaded` and `new_sequence` go on working, and keep their memory while they are referenced.
        """
        loaded = self._loaded
        placement = None if loaded is None else loaded.placement
        device = None if placement is None else placement.device
        if self._shared.is_of_this_process:
            self._shared.close()
        else:
            device = None  # a GPU belongs to the process that forked this one, too
        self._loaded = loaded = placement = None
        if device is not None:
            from powerinfer.offload.place import give_memory_back

            give_memory_back(device)

    def new_sequence(self) -> TokenSequence:
        """An empty sequence for computing logits directly: always the same, emptied.

        It is for one thread, which generates nothing meanwhile: texts take its room.
        """
        self.loaded  # noqa: B018  refuses a model that was closed
        return self._shared.direct_sequence()
