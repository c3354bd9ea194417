"""`POST /v1/traces` as collectors and SDKs send it: body to document, and the answer due."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ontrack.pipeline.serving.traces import (
    Answer,
    UnsupportedMedia,
    answer,
    read_request,
    refuse,
    unavailable,
)
from ontrack.topics.adapters.otlp_live import LiveSpans
from ontrack.topics.errors import InvalidEvent, MessageTooLarge, WrongShape
from tests.pipeline.otlp_messages import as_protobuf
from tests.topics.test_otlp import agent_span, document, tool_span

GOOD = [agent_span(1, conversation="c1"), tool_span(2, "get", parent=1)]
BAD = [tool_span(3, "x" * 300), tool_span(4, "get", spanId="")]
PROTOBUF, JSON = "application/x-protobuf", "application/json"


def encoded(whole, content_type):
    return as_protobuf(whole) if content_type == PROTOBUF else json.dumps(whole).encode()


def taken(raw, content_type, content_encoding=None, **limits):
    """What the daemon does with a request: (tools called, answer)."""
    live = LiveSpans()
    try:
        request = read_request(raw, content_type, content_encoding, **limits)
        events = live.add(request.document, 0.0, on_bad=request.reject)
    except InvalidEvent as error:
        assert live.spans_held == 0
        return [], refuse(error, content_type)
    return [event.tool for event in events], answer(request)


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
class TestBothEncodings:
    def test_good_spans_are_taken(self, content_type):
        tools, said = taken(encoded(document(*GOOD), content_type), content_type)
        assert tools == ["get"]
        assert said == Answer(200, b"" if content_type == PROTOBUF else b"{}", content_type)

    def test_bad_spans_among_good_ones_are_counted_and_the_good_ones_are_taken(self, content_type):
        tools, said = taken(encoded(document(*BAD, *GOOD), content_type), content_type)
        assert tools == ["get"]
        assert (said.status, said.content_type) == (200, content_type)
        if content_type == PROTOBUF:
            partial = ExportTraceServiceResponse.FromString(said.body).partial_success
            told = (partial.rejected_spans, partial.error_message)
        else:
            found = json.loads(said.body)["partialSuccess"]
            told = (int(found["rejectedSpans"]), found["errorMessage"])
        assert told[0] == 2
        assert told[1].startswith('span "0000000000000003": step: field `tool`')

    def test_where_all_spans_are_bad_the_request_is(self, content_type):
        tools, said = taken(encoded(document(*BAD), content_type), content_type)
        assert (tools, said.status, said.content_type) == ([], 400, content_type)
        assert b"span" in said.body

    def test_no_spans_are_fine(self, content_type):
        _, said = taken(encoded({"resourceSpans": []}, content_type), content_type)
        assert said.status == 200
        _, said = taken(b"" if content_type == PROTOBUF else b"{}", content_type)
        assert said.status == 200

    def test_damage_is_a_bad_request(self, content_type):
        raw = encoded(document(*GOOD), content_type)
        tools, said = taken(raw[:-5], content_type)
        assert (tools, said.status, said.content_type) == ([], 400, content_type)

    def test_a_body_over_the_limit_is_too_large(self, content_type):
        raw = encoded(document(*GOOD), content_type)
        _, said = taken(raw, content_type, bytes_max=len(raw) - 1)
        assert said.status == 413
        _, said = taken(raw, content_type, bytes_max=len(raw))
        assert said.status == 200

    @pytest.mark.parametrize(
        ("encoding", "compress"),
        [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress)],
    )
    def test_compressed_bodies_are_inflated_up_to_the_limit(self, content_type, encoding, compress):
        raw = encoded(document(*GOOD), content_type)
        assert taken(compress(raw), content_type, encoding)[0] == ["get"]
        assert taken(raw, content_type, encoding)[0] == ["get"]  # the server did it already
        assert taken(compress(raw)[:-1], content_type, encoding)[1].status == 400
        bomb = compress(b"\n" * 20_000_000)
        _, said = taken(bomb, content_type, encoding, bytes_max=1_000_000)
        assert said.status == 413

    def test_another_compression_is_not_supported(self, content_type):
        raw = encoded(document(*GOOD), content_type)
        for name in ("br", "snappy", "gzip, gzip"):
            tools, said = taken(raw, content_type, name)
            assert (tools, said.status) == ([], 415)
        assert taken(raw, content_type, "identity")[0] == ["get"]

    def test_a_client_is_told_to_try_again(self, content_type):
        said = unavailable("Kafka is away", content_type)
        assert (said.status, said.content_type) == (503, content_type)
        assert b"Kafka is away" in said.body


class TestHeaders:
    @pytest.mark.parametrize(
        "content_type",
        ["application/json; charset=utf-8", "Application/JSON", " application/json ;x=y"],
    )
    def test_parameters_and_case_do_not_matter(self, content_type):
        raw = encoded(document(*GOOD), JSON)
        assert taken(raw, content_type) == (["get"], Answer(200, b"{}", JSON))

    def test_protobuf_has_two_names(self):
        assert taken(encoded(document(*GOOD), PROTOBUF), "application/protobuf")[0] == ["get"]

    @pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/grpc"])
    def test_another_type_is_not_supported(self, content_type):
        with pytest.raises(UnsupportedMedia, match="expected application/x-protobuf or"):
            read_request(b"{}", content_type, None)
        _, said = taken(b"{}", content_type)
        assert (said.status, said.content_type) == (415, JSON)
        assert json.loads(said.body)["code"] == 3

    def test_json_in_another_character_set_is_a_bad_request(self):
        raw = encoded(document(*GOOD), JSON).decode().encode("utf-16")
        assert taken(raw, "application/json; charset=utf-16")[1].status == 400

    @pytest.mark.parametrize("other", [b"[]", b"3", b'{"resourceMetrics": []}', b'{"a": 1}'])
    def test_json_of_something_else_is_a_bad_request(self, other):
        _, said = taken(other, JSON)
        assert said.status == 400
        assert "resourceSpans" in json.loads(said.body)["message"]


class TestAnyBytes:
    @given(st.binary(max_size=200), st.sampled_from([PROTOBUF, JSON]), st.sampled_from(
        [None, "gzip", "deflate", "zstd"]
    ))  # fmt: skip
    def test_every_body_has_an_answer(self, raw, content_type, content_encoding):
        tools, said = taken(raw, content_type, content_encoding)
        assert tools == []
        assert said.status in (200, 400, 413)

    @given(st.data())
    def test_damaged_json_has_an_answer(self, data):
        raw = bytearray(encoded(document(*GOOD), JSON))
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del raw[at:]
        tools, said = taken(bytes(raw), JSON)
        assert len(tools) <= 1
        assert said.status in (200, 400)


def test_errors_become_the_statuses_of_the_protocol():
    assert refuse(MessageTooLarge("big"), JSON).status == 413
    assert refuse(WrongShape("bad"), JSON) == Answer(
        400, json.dumps({"code": 3, "message": "bad"}).encode(), JSON
    )
    assert refuse(WrongShape("bad"), PROTOBUF) == Answer(400, b"\x08\x03\x12\x03bad", PROTOBUF)
