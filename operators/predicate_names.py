"""Which names an expression in CEL mentions: a look at its words, not at its structure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

_MACROS = frozenset({"all", "exists", "exists_one", "filter"})

_LEXEME = re.compile(
    r"""
      (?P<comment> //[^\n]* )
    | (?P<text>
          [bB]?[rR][bB]? (?: \"{3}(?s:.*?)\"{3} | '{3}(?s:.*?)'{3} | "[^"\n]*" | '[^'\n]*' )
        | [bB]? (?: \"{3}(?s:\\.|.)*?\"{3} | '{3}(?s:\\.|.)*?'{3}
                  | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<mark> \S )
    """,
    re.VERBOSE,
)
_FIELD_SHAPE = re.compile(r"x(?:\.x|\[(?:x|\d+)\])+")
_PLAIN_TEXT = re.compile(r"""(["'])([^"'\\]+)\1""")


class Lexeme(NamedTuple):
    """A word of an expression: a name, a text in quotation marks, or any other mark.

    ``kind`` is ``name``, ``text``, ``mark`` or ``end``; ``at`` counts characters from 0.
    """

    kind: str
    text: str
    at: int


_END = Lexeme("end", "", -1)


def lexemes(expression: str) -> list[Lexeme]:
    """Split an expression into words, without white space and comments."""
    return [
        Lexeme(found.lastgroup or "mark", found.group(), found.start())
        for found in _LEXEME.finditer(expression)
        if found.lastgroup != "comment"
    ]


def place_of(expression: str, at: int) -> tuple[int, int]:
    """Return the 1-based line and column of a character."""
    return expression.count("\n", 0, at) + 1, at - expression.rfind("\n", 0, at)


def fields_read(root: str, words: list[Lexeme]) -> dict[str, int] | None:
    """Return the fields of a variable that an expression reads and where, None for any of them.

    Rather too many than too few: whatever is not plainly ``root.name`` or ``root["name"]`` means
    any of them.

    Examples
    --------
    >>> fields_read("args", lexemes("args.to == 'args.cc' && args['id'] > 3"))
    {'to': 0, 'id': 24}
    >>> fields_read("args", lexemes("size(args) < 3")) is None
    True
    """
    names: dict[str, int] = {}
    padded = [_END, _END, *words, _END, _END, _END]
    for place, word in enumerate(words):
        if word.kind != "name" or word.text != root:
            continue
        before, dot = padded[place : place + 2]
        first, second, third = padded[place + 3 : place + 6]
        if dot.text == "." and _ends_a_value(before):
            continue  # a field of something else that is called the same
        literal = _PLAIN_TEXT.fullmatch(second.text)
        if dot.text == ".":
            return None
        if first.text == "." and second.kind == "name" and third.text != "(":
            names.setdefault(second.text, word.at)
        elif first.text == "[" and literal and third.text == "]":
            names.setdefault(literal.group(2), word.at)
        else:
            return None
    return names


def bound_name(words: list[Lexeme], taken: Collection[str]) -> Lexeme | None:
    """Return the first of the taken names that a macro binds to the elements of a list.

    Examples
    --------
    >>> bound_name(lexemes("args.to.all(task, task != '')"), {"args", "task"})
    Lexeme(kind='name', text='task', at=12)
    """
    for name in _bound(words):
        if name.kind == "name" and name.text in taken:
            return name
    return None


def macros(words: list[Lexeme]) -> int:
    """Count the macros that pass over a list.

    Examples
    --------
    >>> macros(lexemes("args.to.all(t, task.known.exists(k, t == k))"))
    2
    """
    return len(_bound(words))


def open_pattern(words: list[Lexeme], root: str) -> Lexeme | None:
    """Return where ``matches`` takes its pattern from elsewhere than a text or a field of a root.

    Examples
    --------
    >>> open_pattern(lexemes("args.to.matches('^a') && args.to.matches(task.form)"), "task")
    >>> open_pattern(lexemes("args.to.matches(args.form)"), "task")
    Lexeme(kind='name', text='args', at=16)
    """
    for place, word in enumerate(words[:-2]):
        if word.text == "matches" and words[place + 1].text == "(":
            pattern = _last_argument(words[place + 2 :])
            if not pattern:
                return word
            shape = "".join("x" if each.kind in ("name", "text") else each.text for each in pattern)
            is_field = pattern[0].text == root and _FIELD_SHAPE.fullmatch(shape) is not None
            if not is_field and [each.kind for each in pattern] != ["text"]:
                return pattern[0]
    return None


def _last_argument(words: list[Lexeme]) -> list[Lexeme]:
    """Return the words of the last argument of a call, whose bracket was opened before."""
    depth = 1
    found: list[Lexeme] = []
    for word in words:
        if word.kind == "mark" and word.text in "([{":
            depth += 1
        elif word.kind == "mark" and word.text in ")]}":
            depth -= 1
            if not depth:
                break
        elif word.text == "," and depth == 1:
            found = []
            continue
        found.append(word)
    return found


def _bound(words: list[Lexeme]) -> list[Lexeme]:
    """Return the first word after each ``.macro(``."""
    return [
        words[place + 3]
        for place in range(len(words) - 3)
        if words[place].text == "."
        and words[place + 1].text in _MACROS
        and words[place + 2].text == "("
    ]


def _ends_a_value(word: Lexeme) -> bool:
    if word.kind == "mark":
        return word.text in ")]}`"
    return word.kind == "text" or (word.kind == "name" and word.text != "in")
