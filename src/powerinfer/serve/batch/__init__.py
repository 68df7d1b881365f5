"""Request files in OpenAI's batch format, answered by the server's routes."""

from powerinfer.serve.batch.answers import AnswerFile
from powerinfer.serve.batch.requests import BatchRequest, read_requests
from powerinfer.serve.batch.run import run_batch

__all__ = ["AnswerFile", "BatchRequest", "read_requests", "run_batch"]
