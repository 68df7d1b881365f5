"""The methods of `LLM` that read texts instead of writing them: `logits`, `score`, `embed`.

What they call is imported when they are called: most programs only generate.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from powerinfer.engine.open_model import OpenModel
from powerinfer.prompts.prompts import Prompt, prompt_ids
from powerinfer.values import FloatArray

if TYPE_CHECKING:
    from powerinfer.prompts.texts import Scorable
    from powerinfer.scoring.scoring import Score

__all__ = ["ScoringMethods"]


class ScoringMethods(OpenModel):
    """What `LLM` inherits.

    Texts are checked first. Then calls of these methods wait for each other, and compute beside
    texts that are generated.
    """

    def logits(self, prompt: Prompt, *, last: int | None = None) -> FloatArray:
        """Logits after each token of a prompt: f32[num_tokens, vocab_size].

        Args:
            prompt: as for `generate`.
            last: give only those after the last so many tokens, which saves memory and time.

        Raises:
            PromptError: as for `generate`, or `last` is not between 1 and the number of tokens.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.scoring.scoring import prompt_logits

        loaded = self.loaded
        token_ids = prompt_ids(loaded, prompt)
        with self._shared.own_sequence(len(token_ids)) as sequence:
            return prompt_logits(loaded, sequence, token_ids, last)

    def score(self, texts: "Scorable | Iterable[Scorable]") -> "list[Score]":
        """How likely texts are, or continuations of contexts.

        Of a text alone all tokens behind BOS are scored; where the vocabulary adds no BOS, and of
        token ids, all but the first. Of a pair (context, continuation) the continuation is scored.
        Both are tokenized as one text: spaces at the end of the context, and a token across the
        border, belong to the continuation. A context of several pairs is computed once; on the CPU
        no result depends, in any bit, on what else is scored in the same call.

        Args:
            texts: one or several; a pair is a tuple in a list.

        Returns:
            One `Score` per text, in order.

        Raises:
            PromptError: nothing of a text can be scored, or it is longer than the context by more
                than the one token that is never computed. Nothing was computed then.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.prompts.texts import read_scorables
        from powerinfer.scoring.scoring import score_texts

        loaded = self.loaded
        items = read_scorables(loaded, texts)
        # The last token of each is never computed.
        longest = max((len(each.context) + len(each.continuation) - 1 for each in items), default=0)
        with self._shared.own_sequence(longest) as sequence:
            return score_texts(loaded, sequence, items)

    def embed(
        self,
        texts: Prompt | Iterable[Prompt],
        *,
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
    ) -> FloatArray:
        """Texts as vectors: f32[num_texts, hidden_size].

        A vector is pooled from the hidden states behind the final norm, which the output head gets.

        Args:
            texts: one or several; BOS is added as the vocabulary asks.
            pooling: `mean` takes the mean over all tokens but BOS at the beginning, `last` the
                state of the last token.
            normalize: give each vector the length 1.

        Raises:
            PromptError: a text is empty or longer than the context. Nothing was computed then.
            UnsupportedError: there is no such pooling.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.prompts.texts import read_texts
        from powerinfer.scoring.embedding import check_pooling, embed_texts

        check_pooling(pooling)
        loaded = self.loaded
        read = read_texts(loaded, texts)
        with self._shared.own_sequence(max(map(len, read), default=0)) as sequence:
            return embed_texts(loaded, sequence, read, pooling, normalize=normalize)
