"""Data as people write it: JSON, YAML or TOML, told apart by the suffix."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from datetime import date, time
from pathlib import Path
from typing import Any, BinaryIO

import tomli_w
import yaml

from ontrack.pipeline.reading.sources import STDIN, Source
from ontrack.topics.errors import InvalidEvent, InvalidFile
from ontrack.topics.jsontext import parse

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_YAML_LINE_ENDS = "\x85\u2028\u2029"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Loader(yaml.SafeLoader):
    """YAML as JSON would have it: a date without quotation marks is a text, as it is on topics."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in found if tag != _TIMESTAMP]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_plain(path: str, stdin: BinaryIO | None = None) -> Any:
    """Read one file, compressed or not; ``-`` is standard input, ``.jsonl`` is a list of its lines.

    Without a suffix that is known, what begins like JSON is JSON and all else is YAML.

    Raises
    ------
    InvalidFile
        No such file, or it cannot be parsed.
    """
    if path != STDIN and not Path(path).is_file():
        raise InvalidFile(path, None, "no such file")
    raw = Source(path, stdin).read().removeprefix(_BYTE_ORDER_MARK)
    suffixes = Path(path).suffixes
    try:
        if ".toml" in suffixes:
            return _with_dates_as_text(tomllib.loads(raw.decode("utf-8")))
        if ".jsonl" in suffixes or ".ndjson" in suffixes:
            return [parse(line).value for line in raw.splitlines() if line.strip()]
        is_yaml = ".yaml" in suffixes or ".yml" in suffixes
        if not is_yaml and (".json" in suffixes or raw.lstrip()[:1] in (b"{", b"[")):
            return parse(raw).value
        return _yaml(raw)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InvalidFile(path, None, f"cannot be parsed: {problem}") from error
    except InvalidEvent as error:
        raise InvalidFile(path, None, str(error)) from error


def _yaml(raw: bytes) -> Any:
    loader = _Loader(raw)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _with_dates_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_dates_as_text(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_dates_as_text(item) for item in value]
    return value.isoformat() if isinstance(value, date | time) else value


def plain_text(data: dict[str, Any], path: str) -> str:
    """Write data as the suffix of a path asks for: YAML, TOML, JSON for all else.

    Raises
    ------
    InvalidFile
        TOML cannot hold null.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".yaml", ".yml"):
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
        if any(mark in text for mark in _YAML_LINE_ENDS):  # written plain, they are read as spaces
            text = yaml.safe_dump(data, sort_keys=False, width=100)
        return text
    if suffix == ".toml":
        return _toml(data, path)
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _toml(data: dict[str, Any], path: str) -> str:
    null = _null_in(data, "")
    if null is not None:
        raise InvalidFile(
            path, None, f"`{null[:120]}` is null, which TOML cannot hold; write .json or .yaml"
        )
    return tomli_w.dumps(data)


def _null_in(value: Any, where: str) -> str | None:
    """Return the place of the first null below a value."""
    if value is None:
        return where
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        inner = ((f"{where}.{name}" if where else name, item) for name, item in value.items())
    elif isinstance(value, list | tuple):
        inner = ((f"{where}[{place}]", item) for place, item in enumerate(value))
    found = (_null_in(item, place) for place, item in inner)
    return next((place for place in found if place is not None), None)
