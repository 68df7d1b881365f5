"""The routes of OpenAI's API, with and without `/v1` as llama-server has them."""

from fastapi import APIRouter, Request, Response

from powerinfer.errors import PowerInferError
from powerinfer.serve.bodies import read_object
from powerinfer.serve.context import ServerContext
from powerinfer.serve.openai.answerers import AnswererReply
from powerinfer.serve.openai.chat import ChatAnswer
from powerinfer.serve.openai.chat_request import read_chat
from powerinfer.serve.openai.completion_request import read_completion
from powerinfer.serve.openai.completions import CompletionAnswer
from powerinfer.serve.openai.schemas import CHAT_BODY, COMPLETION_BODY
from powerinfer.serve.pooled_model import PooledModel
from powerinfer.serve.responding import answer, answer_body, answer_with
from powerinfer.serve.served_model import ServedModel

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=CHAT_BODY)
    @routes.post("/chat/completions", include_in_schema=False)
    async def chat(request: Request) -> Response:
        """Answer the messages of a chat."""
        body = await read_object(request, context)
        if (answerer := context.answerers.get(str(body.get("model")))) is not None:
            return answer_with(AnswererReply(answerer, body), context)
        return answer_body(body, context, read_chat, ChatAnswer)

    @routes.post("/v1/completions", openapi_extra=COMPLETION_BODY)
    @routes.post("/completions", include_in_schema=False)
    async def completions(request: Request) -> Response:
        """Go on with prompts."""
        return await answer(request, context, read_completion, CompletionAnswer)

    @routes.get("/v1/models")
    @routes.get("/models", include_in_schema=False)
    async def models() -> dict[str, object]:
        """List the models."""
        await context.models.refresh()
        listed = context.models.models
        data = [_answerer(context, name) for name in context.answerers]
        return {
            "object": "list",
            "data": [*data, *[await _model(context, each) for each in listed]],
        }

    @routes.get("/v1/models/{name:path}")
    @routes.get("/models/{name:path}", include_in_schema=False)
    async def model(name: str) -> dict[str, object]:
        """Describe one model."""
        if name in context.answerers:
            return _answerer(context, name)
        await context.models.refresh(name)
        return await _model(context, context.models.find(name))

    return routes


def _answerer(context: ServerContext, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "powerinfer",
        "meta": {},
        "status": {"value": "loaded"},
    }


async def _model(context: ServerContext, model: PooledModel) -> dict[str, object]:
    """Describe a model; clients of llama-server read `meta`, and `status` of several models."""
    context.models.check_loaded()
    problem = model.problem
    meta: dict[str, object] = {}
    if model.resident is not None:
        meta = _meta(model.resident.context.model)
    elif model.source is not None:
        try:
            facts = await context.run_blocking(model.source.facts)
            meta = {
                "n_ctx": facts.context_length,
                "n_ctx_train": facts.trained_length,
                "size": facts.weight_bytes,
            }
        except PowerInferError as error:
            problem = error.message or str(error)
    described: dict[str, object] = {
        "id": model.name,
        "object": "model",
        "created": context.created,
        "owned_by": "powerinfer",
        "meta": meta,
    }
    if not context.models.is_one:
        failed = {} if problem is None else {"error": problem}
        described["status"] = {"value": model.state.value, **failed}
    return described


def _meta(model: ServedModel) -> dict[str, object]:
    meta: dict[str, object] = {
        "n_vocab": model.tokenizer.vocab_size,
        "n_ctx": model.context_length,
    }
    if model.loaded is not None:
        config = model.loaded.model.config
        meta |= {
            "vocab_type": 1 if model.tokenizer.model == "llama" else 2,
            "n_ctx_train": config.context_length,
            "n_embd": config.hidden_size,
            "size": sum(tensor.data.nbytes for tensor in model.loaded.file.tensors.values()),
        }
    return meta
