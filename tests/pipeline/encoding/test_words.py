from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from ontrack.pipeline.encoding import words
from ontrack.pipeline.encoding.encoders import wordllama_tokenizer
from ontrack.pipeline.encoding.words import WordTokens

PLAIN = wordllama_tokenizer()
TOKENS = WordTokens(wordllama_tokenizer())

# What texts of agents are made of, and what a tokenizer might trip over.
WORDS = "get_order Order orders 17 #W20 </s> <s> <unk> </ s> <0x0A> \u2581 é ne 漢字 ²). 🙂"
PIECES = st.sampled_from([*WORDS.split(), '{"id":"', '","', " ", "  ", "   ", "\n", "\t", "\x00"])
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=14).map("".join)


def ids_of(text: str) -> list[int]:
    """Tokenise a text whole, with a tokenizer that nobody has changed."""
    return list(PLAIN.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a",
        " a ",
        "find the order, then refund it",
        '{"id":"doc-039","lines":["first parcel","second"],"n":3.50}',
        "def f(x):\n    return x['a_b']  # twice\n",
        "naïve 漢字 🙂 \u2581 x² ²).",
        "<s>struck</s> out <unk>",
    ],
)
def test_the_tokens_of_a_text_are_those_of_its_words(text: str) -> None:
    assert TOKENS.by_word
    assert TOKENS.ids(text) == ids_of(text)
    assert TOKENS.ids(text) == ids_of(text)  # now from memory


@settings(max_examples=400, deadline=None)
@given(text=TEXTS.filter(lambda text: text.encode("utf-8", "ignore").decode() == text))
def test_any_text_is_tokenised_as_it_is_whole(text: str) -> None:
    assert TOKENS.ids(text) == ids_of(text)
    assert TOKENS.ids(text) == ids_of(text)


def test_memory_is_bounded_and_holds_no_long_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "WORDS_MAX", 8)
    tokens = WordTokens(wordllama_tokenizer())
    for text in ["one two three four five", "six seven eight nine", "x" * 33, "one two"]:
        assert tokens.ids(text) == ids_of(text)
        assert len(tokens._kept) <= 8
    assert all(len(word) <= words.CHARACTERS_MAX for word in tokens._kept)


def _small(**model: Any) -> Tokenizer:
    vocab = {"<s>": 0, "\u2581": 1, "a": 2, "b": 3, "1": 4} | model.pop("vocab", {})
    made = Tokenizer(models.BPE(vocab=vocab, merges=model.pop("merges", []), **model))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.add_special_tokens(["<s>"])
    return made


def test_a_tokenizer_whose_tokens_reach_over_words_is_asked_for_whole_texts() -> None:
    assert WordTokens(_small()).by_word
    over_space = _small(vocab={"b\u2581": 5}, merges=[("b", "\u2581")])
    over_digit = _small(vocab={"a1": 5}, merges=[("a", "1")])
    split_first = _small()
    split_first.pre_tokenizer = pre_tokenizers.Whitespace()
    for tokenizer in (over_space, over_digit, split_first):
        tokens = WordTokens(tokenizer)
        assert not tokens.by_word
        expected = tokenizer.encode("b a1 b", add_special_tokens=False).ids
        assert tokens.ids("b a1 b") == expected
