"""A model of this machine, served without a port.

Orchestras use the server's models: these load when they are first asked, share memory and threads,
and texts of one model are computed as one batch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from powerinfer.errors import ContextLengthError, PowerInferError
from powerinfer.options.llm_options import LLMOptions
from powerinfer.orchestra.workers.worker import Answer, Question, WorkerError
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.chat.plan import Chat, ChatPlan, plan_chat
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError
from powerinfer.serve.loading import facts_reader, load_served
from powerinfer.serve.model_source import ModelSource
from powerinfer.serve.openai.streams import opened
from powerinfer.store.default_model import default_model_path, find_model

__all__ = ["LocalWorker", "model_source"]


class LocalWorker:
    """A model of a server's context, by name."""

    def __init__(self, context: ServerContext, model: str) -> None:
        """Use a model; it need not be loaded."""
        self._context = context
        self._model = model

    async def answer(self, question: Question) -> Answer:
        """Answer a question; reasoning is no part of the answer.

        Raises:
            WorkerError: the model cannot be loaded, the messages are longer than its context, ...
        """
        try:
            return await self._answer(question)
        except ApiError as error:
            is_too_long = error.code == "context_length_exceeded"
            raise WorkerError(error.message, is_too_long=is_too_long) from None
        except PowerInferError as error:
            is_too_long = isinstance(error, ContextLengthError)
            raise WorkerError(error.message, is_too_long=is_too_long) from None

    async def _answer(self, question: Question) -> Answer:
        models = self._context.models
        async with models.using(models.find(self._model)) as model:
            plan: ChatPlan = await model.run_blocking(plan_chat, model, _chat(question))
            parser, deltas, is_cut = plan.new_parser(), [], False
            async with opened(model, [plan.request(shares_answers=False)]) as streams:
                async for _, output in streams.outputs():
                    deltas += parser.push(output.text) if output.text else []
                    is_cut = output.finish_reason is FinishReason.LENGTH
                deltas += parser.finish()
                return Answer(
                    text="".join(each.content for each in deltas),
                    prompt_tokens=streams.num_prompt_tokens,
                    tokens=streams.num_tokens,
                    is_cut=is_cut,
                )


def _chat(question: Question) -> Chat:
    schema = None if question.grammar else question.json_schema
    params = SamplingParams(
        max_tokens=question.max_tokens,
        temperature=question.temperature,
        seed=question.seed,
        grammar=question.grammar,
        json_schema=None if schema is None else dict(schema),
    )
    return Chat(
        messages=cast("list[ChatMessage]", list(question.messages)),
        params=params,
        prefill=question.prefill,
        is_plain=True,
    )


def model_source(names: tuple[str, ...], model: str, options: LLMOptions) -> ModelSource:
    """Describe a model of a pool to a server's context.

    Args:
        names: of its workers, which are the model's for clients.
        model: file or name; empty for the model of the package.

    Raises:
        PowerInferError: there is no such model.
    """
    path = Path(find_model(model)) if model else default_model_path()
    checked = cast("LLMOptions", {**cast("Mapping[str, object]", options), "device": "cpu"})
    source = ModelSource(
        names=names,
        path=path,
        load=lambda progress: load_served(path, checked, progress=progress),
        read_facts=facts_reader(path, checked),
        is_story_model=not model,
    )
    source.facts()
    return source
