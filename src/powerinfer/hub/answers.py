"""What answers of the Hub mean: whether to ask again, and what a refusal says in one line."""

import logging
import time

from powerinfer.errors import HubError
from powerinfer.hub.names import Reference
from powerinfer.hub.session import Response, endpoint, token

__all__ = ["Retries", "UnreachableError", "check_answer"]

_log = logging.getLogger(__name__)

WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each repetition of a request."""

_LONGEST_WAIT_S = 60.0
# Too many requests, and what servers say while something behind them fails.
_PASSING = (408, 429, 500, 502, 503, 504)


class UnreachableError(HubError):
    """The server cannot be reached at all; what is in the caches may do."""


class Retries:
    """How often a request is made again; bytes that arrive make it patient again."""

    def __init__(self, what: str, *, advice: str) -> None:
        """Begin.

        Args:
            what: is asked for; begins the message of the error.
            advice: ends it.
        """
        self._what, self._advice = what, advice
        self._number = 0

    def begin_anew(self) -> None:
        """Something has arrived."""
        self._number = 0

    def wait(self, problem: str, seconds: float | None = None) -> None:
        """Wait before the next attempt.

        Args:
            problem: of the last one.
            seconds: that the server asks for; None if it does not.

        Raises:
            HubError: there were enough of them.
        """
        if self._number == len(WAITS_S) or (seconds or 0) > _LONGEST_WAIT_S:
            wish = "" if seconds is None else f" (it asks to wait {seconds:g} s)"
            raise HubError(f"{self._what}: {problem}{wish}; {self._advice}")
        pause = WAITS_S[self._number] if seconds is None else seconds
        self._number += 1
        _log.warning("%s: %s; trying again in %g s", self._what, problem, pause)
        time.sleep(pause)


def check_answer(response: Response, reference: Reference, retries: Retries) -> bool:
    """Whether a request succeeded; False after waiting, if it may when it is repeated.

    Args:
        response: to it.
        reference: to the model that it was for.
        retries: of the same request.

    Raises:
        HubError: it was refused, in words that say what to do; or it failed too often.
    """
    status = response.status_code
    if status < 300:
        return True
    if status in _PASSING:
        wanted = str(response.headers.get("retry-after", ""))
        retries.wait(
            f"the server answers {_status(response)}", float(wanted) if wanted.isdigit() else None
        )
        return False
    raise _refusal(response, reference)


def _status(response: Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def _refusal(response: Response, reference: Reference) -> HubError:
    """What a refusal means; the Hub says more in two headers than in the status."""
    status, code = response.status_code, response.headers.get("x-error-code", "")
    page = f"{endpoint()}/{reference.repository}"
    if code == "RevisionNotFound":
        what = f"it has no revision {reference.revision!r}"
    elif code == "EntryNotFound":
        what = "a file that it lists is not there"
    elif code == "GatedRepo":
        what = f"one has to accept its terms first, at {page}; then {_token_advice()}"
    elif code == "RepoNotFound" or (status == 401 and not token()):
        # The Hub does not tell strangers which private repositories there are.
        what = f"no such repository at {endpoint()}, or not a public one: check the name; for a "
        what += f"private or gated one {_token_advice()}"
    elif status in (401, 403):
        what = f"the server refuses access ({_status(response)}): {_token_advice()}"
    elif status == 404:
        what = f"no such repository at {endpoint()}"
    else:
        what = f"the server answers {_status(response)}"
    return HubError(f"{reference.model}: {what}")


def _token_advice() -> str:
    if token():
        return "use the token (HF_TOKEN, or of `hf auth login`) of an account that may read it"
    return "set HF_TOKEN to a token of your account, or run `hf auth login`"
