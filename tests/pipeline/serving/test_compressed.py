"""Compressed bodies, as exporters and collectors send them, to the real daemon."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import zstandard

from tests.pipeline.serving.served import Served, served

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
}
TOO_MUCH = b" " * 20_000_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("serve")) as process:
        yield process


def _post(url: str, body: bytes, encoding: str) -> tuple[int, str]:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    try:
        with urlopen(Request(url, body, headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def _bodies(run_id: str) -> dict[str, bytes]:
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.conversation.id": run_id,
    }
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in values.items()]
    span = {
        "traceId": "a" * 32,
        "spanId": f"{abs(hash(run_id)) % 10**15 + 1:016x}",
        "name": "execute_tool search",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": attributes,
    }
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    call = {"session_id": run_id, "hook_event_name": "PreToolUse", "tool_name": "Bash"}
    return {
        "/v1/traces": json.dumps(document).encode(),
        "/v1/events": json.dumps({"type": "step", "run_id": run_id, "tool": "x"}).encode(),
        "/v1/hooks/claude-code": json.dumps(call | {"tool_input": {}}).encode(),
    }


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("path", ["/v1/traces", "/v1/events", "/v1/hooks/claude-code"])
def test_a_compressed_body_is_read_and_a_bad_one_is_the_senders_fault(
    daemon: Served, path: str, encoding: str
) -> None:
    run_id = f"{path.rpartition('/')[2]}-{encoding}"
    compress, url = COMPRESS[encoding], daemon.url + path
    body = compress(_bodies(run_id)[path])
    assert _post(url, body, encoding)[0] == 200
    assert _post(url, body[:-1], encoding)[0] == 400
    assert _post(url, compress(TOO_MUCH), encoding)[0] == 413


@pytest.mark.parametrize(("path", "status"), [("/v1/traces", 415), ("/v1/events", 400)])
def test_an_unknown_compression_is_named(daemon: Served, path: str, status: int) -> None:
    found, text = _post(daemon.url + path, b"whatever", "br")
    assert found == status
    assert "expected one of gzip, deflate, zstd" in text
