"""Token ids of a text, word by word: most words have been met before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPACE = "\u2581"  # how a tokenizer after SentencePiece writes a space
_PREPEND = {"type": "Prepend", "prepend": _SPACE}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
# With the spaces before it: a word of ASCII letters, a digit, or a run of anything else.
_WORD = re.compile(r" *(?:[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]+)| +\Z")
# Letters and signs beyond ASCII do share tokens with others.
_WORD_OF_ANY = re.compile(r" *[^ ]+| +\Z")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # of the vocabulary, but nothing is merged into one

WORDS_MAX = 32_768
CHARACTERS_MAX = 32


class WordTokens:
    """A tokenizer that remembers the tokens of words.

    It merges neighbours into the tokens of its vocabulary and does nothing else. No token has a
    letter beside a digit or a sign, two digits, or anything before a space (all in ASCII), so no
    merge ever joins two words, and the tokens of a text are those of its words. That is looked up
    in the vocabulary; of a tokenizer that is otherwise, texts are tokenised whole.

    Several threads may use it. At most ``WORDS_MAX`` words are kept, none longer than
    ``CHARACTERS_MAX``: about 8 MiB of words that are common, 40 MiB of long ones in a script of
    which the vocabulary has only bytes.

    Parameters
    ----------
    tokenizer
        Is changed, so it belongs to this object from now on.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
        self.by_word = bool(special) and _may_be_cut(tokenizer, special)
        self._tokenizer = tokenizer
        self._special = special
        self._any_special = re.compile("(" + "|".join(map(re.escape, special)) + ")")
        self._kept: dict[str, tuple[int, ...]] = {}
        if self.by_word:
            from tokenizers.normalizers import Replace

            self._between, self._between_id = next(iter(special.items()))
            tokenizer.normalizer = Replace(" ", _SPACE)  # a word says itself what is before it

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens: the tokenizer's own, whatever is remembered."""
        if not self.by_word:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        if self._any_special.search(text) is None:
            return self._ids(text)
        parts = self._any_special.split(text)
        return [
            i for p in parts for i in ([self._special[p]] if p in self._special else self._ids(p))
        ]

    def _ids(self, text: str) -> list[int]:
        if not text:
            return []
        spaced = f" {text}".replace(_SPACE, " ")
        words = (_WORD if text.isascii() else _WORD_OF_ANY).findall(spaced)
        found = list(map(self._kept.get, words))
        if None not in found:
            return list(chain.from_iterable(found))  # type: ignore[arg-type]
        fresh = self._learn(word for word, ids in zip(words, found, strict=True) if ids is None)
        return list(
            chain.from_iterable(ids or fresh[w] for w, ids in zip(words, found, strict=True))
        )

    def _learn(self, words: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Tokenise words that are not remembered, all in one call."""
        unknown = list(dict.fromkeys(words))
        together = self._between.join(unknown)
        ids = self._tokenizer.encode(together, add_special_tokens=False).ids
        fresh, begin = {}, 0
        ids.append(self._between_id)
        for word in unknown:
            end = ids.index(self._between_id, begin)
            fresh[word] = tuple(ids[begin:end])
            begin = end + 1
        if len(self._kept) + len(fresh) > WORDS_MAX:
            self._kept.clear()
        self._kept.update((w, ids) for w, ids in fresh.items() if len(w) <= CHARACTERS_MAX)
        return fresh


def _may_be_cut(tokenizer: Tokenizer, special: Iterable[str]) -> bool:
    """Tell whether a tokenizer is of the kind of which the tokens of texts are those of words."""
    from tokenizers.models import BPE

    model, normalizer = tokenizer.model, tokenizer.normalizer
    if not isinstance(model, BPE) or normalizer is None or tokenizer.pre_tokenizer is not None:
        return False
    rules = json.loads(normalizer.__getstate__()).get("normalizers")
    if model.dropout is not None or model.ignore_merges or rules != [_PREPEND, _REPLACE]:
        return False
    return all(map(_is_one_word, set(tokenizer.get_vocab()).difference(special)))


def _is_one_word(token: str) -> bool:
    bare = token.lstrip(_SPACE)
    if not bare.isascii():
        return _SPACE not in bare
    # A word of letters, by far the most, is told without a pattern.
    return bare.isalpha() or len(_WORD.findall(bare)) < 2 or bool(_BYTE_TOKEN.fullmatch(bare))
