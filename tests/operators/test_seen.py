from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.seen import SeenSteps

DIGESTS = st.binary(min_size=8, max_size=8).filter(any)


def test_a_step_that_was_seen_is_known_by_its_number_and_its_neighbours_are_not() -> None:
    seen = SeenSteps().insert(17, b"12345678")
    assert seen.get(17) == b"12345678"
    assert [seen.get(seq) for seq in (16, 18, 1, 33)] == [None] * 4
    assert len(seen) == 1


@given(st.lists(st.tuples(st.integers(0, 2**53) | st.integers(0, 40), DIGESTS)))
def test_it_is_a_dictionary(pairs: list[tuple[int, bytes]]) -> None:
    seen, twin = SeenSteps(), dict[int, bytes]()
    for seq, digest in pairs:
        seen = seen.insert(seq, digest)
        twin[seq] = digest
    assert len(seen) == len(twin)
    assert {seq: seen.get(seq) for seq, _ in pairs} == twin
