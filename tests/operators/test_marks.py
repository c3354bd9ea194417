from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import artifacts, sightings
from ontrack.operators.marks import marked_parts

TEXTS = st.text(alphabet="ab1_@#./\\-:, \n\té²İ漢\ud83d", max_size=60) | st.text(max_size=60)


def test_only_the_words_that_may_be_ids_are_looked_at() -> None:
    text = "Put order 17 into src/orders.py, then stop"
    assert list(marked_parts(text)) == ["17", "src/orders.py,"]
    assert list(marked_parts("nothing in here, or there")) == []
    assert list(marked_parts("")) == []


@given(text=TEXTS)
def test_the_parts_are_those_between_spaces_that_hold_a_mark(text: str) -> None:
    marked = [part for part in text.split(" ") if re.search(r"[0-9_@#./\\]", part)]
    assert list(marked_parts(text)) == marked


@given(text=TEXTS)
def test_no_word_that_looks_like_an_id_is_left_out(text: str) -> None:
    every = artifacts._TOKEN.findall(text)
    ids = [word for word in every if artifacts._LOOKS_LIKE_ID.search(word)]
    assert list(artifacts._tokens(text)) == ids
    every = sightings._TOKEN.findall(text)
    values = {word for word in every if sightings._MARKED.search(word.strip(".:-"))}
    looked_at = {word for part in marked_parts(text) for word in sightings._TOKEN.findall(part)}
    assert values <= looked_at
