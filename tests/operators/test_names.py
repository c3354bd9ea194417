"""Names of arguments: one table, two questions, and where their answers differ."""

from __future__ import annotations

import pytest

from ontrack.operators.names import TEXTS, KeyKind, is_prose, key_kind


def test_names_of_arguments_are_told_apart() -> None:
    kinds = {
        KeyKind.VOLATILE: ("nonce", "requestId", "REQUEST_ID", "ts"),
        KeyKind.AMBIGUOUS: ("id", "uuid", "time"),
        KeyKind.IDENTITY: ("path", "order_id", "orderId", "file_path", "url", "message_id"),
        KeyKind.PROSE: ("query", "body", "thought", "email_body", "searchQuery", "Reasoning"),
        KeyKind.COMMAND: ("code", "sql", "command"),
        KeyKind.BOUND: ("date", "from", "to"),
        KeyKind.OTHER: ("paid", "grid", "limit", "city", "zip_code", "departure_date", ""),
    }
    for kind, names in kinds.items():
        assert {name: key_kind(name) for name in names} == dict.fromkeys(names, kind)


@pytest.mark.parametrize("path", ["body", "email_body", "emailBody", "order.Reason", "notes[*]"])
def test_the_last_word_of_a_name_tells_prose(path: str) -> None:
    assert is_prose(path)


@pytest.mark.parametrize("path", ["to", "url", "path", "reason_code", "message_id", ""])
def test_names_of_addressees_and_ids_are_not_prose(path: str) -> None:
    assert not is_prose(path)


@pytest.mark.parametrize("name", ["to", "from", "command", "code", "sql", "input", "pattern"])
def test_commands_and_bounds_name_no_object_of_a_call_and_are_prose_for_no_gate(name: str) -> None:
    assert key_kind(name) in TEXTS
    assert not is_prose(name)


def test_both_questions_agree_on_prose() -> None:
    for name in ("details", "notes", "e-mail_text", "explanation", "q"):
        assert is_prose(name)
        assert key_kind(name) is KeyKind.PROSE
