"""OTLP in protobuf: the same events as from JSON, from requests and from files; damage is named."""

from __future__ import annotations

import base64
import gzip
import io
import json
import lzma
import math
import struct
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ontrack.pipeline.reading import otlp_protobuf
from ontrack.pipeline.reading.inflate import ENCODINGS, inflated
from ontrack.pipeline.reading.otlp_files import is_stream
from ontrack.pipeline.reading.otlp_protobuf import (
    read_document,
    response_json,
    response_protobuf,
    status_protobuf,
)
from ontrack.pipeline.reading.readers import read_events
from ontrack.topics.adapters import PARTIAL, Origin, otlp
from ontrack.topics.adapters.otlp_live import LiveSpans
from ontrack.topics.errors import InvalidFile, MessageTooLarge, WrongShape
from tests.pipeline.otlp_messages import as_protobuf, delimited
from tests.topics.test_otlp import agent_span, document, pairs, span, tool_span

SPANS = [
    agent_span(1, conversation="c1"),
    tool_span(2, "get", '{"id": 1}', "x", parent=1),
    tool_span(3, "put", '{"id": 2}', "no", parent=1, status={"code": 2, "message": "denied"}),
]
RECORDED = Path(__file__).resolve().parents[2] / "data" / "formats" / "otlp"
WHOLE = as_protobuf(document(*SPANS, **{"service.name": "shop"}))


def events_of(found):
    return list(otlp.events(found, Origin("f", "f")))


def steps_in(path, **options):
    return [found for found in read_events([path], **options) if found.event.type == "step"]


class TestRequests:
    def test_a_request_gives_the_events_of_its_json(self):
        given_document = document(*SPANS, **{"service.name": "shop"})
        assert events_of(read_document(WHOLE)) == events_of(given_document)
        assert [event.type for event in events_of(read_document(WHOLE))] == [
            "run_started",
            "step",
            "step",
            "run_ended",
        ]

    @pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json*")), ids=lambda path: path.name)
    def test_recorded_spans_give_the_same_events_from_protobuf(self, path, tmp_path):
        documents = [json.loads(path.read_text())]
        other = tmp_path / path.name
        other.write_bytes(delimited(*map(as_protobuf, documents)))
        expected = [found.event for found in read_events([path])]
        assert [found.event for found in read_events([other])] == expected
        assert len(expected) > 2

    def test_traces_data_is_read_as_a_request_is(self):
        data = TracesData.FromString(WHOLE).SerializeToString()
        assert read_document(data) == read_document(WHOLE)

    def test_ids_are_hexadecimal_and_times_are_text(self):
        (resource,) = read_document(WHOLE)["resourceSpans"]
        read = resource["scopeSpans"][0]["spans"][1]
        for name in ("traceId", "spanId", "parentSpanId", "startTimeUnixNano", "endTimeUnixNano"):
            assert read[name] == SPANS[1][name]

    def test_no_value_of_an_attribute_is_lost(self):
        request = ExportTraceServiceRequest()
        found = request.resource_spans.add().scope_spans.add().spans.add()
        found.trace_id, found.span_id = b"t" * 16, b"s" * 8
        values = [
            AnyValue(int_value=-(2**63)),
            AnyValue(int_value=2**63 - 1),
            AnyValue(double_value=math.nan),
            AnyValue(double_value=-math.inf),
            AnyValue(double_value=0.1),
            AnyValue(bytes_value=b"\x00\xff"),
            AnyValue(bool_value=False),
            AnyValue(string_value=""),
            AnyValue(),
        ]
        for value in values:
            found.attributes.add(key="k").value.CopyFrom(value)
        nested = found.attributes.add(key="nested").value.kvlist_value
        nested.values.add(key="a").value.array_value.values.add(int_value=1)
        (resource,) = read_document(request.SerializeToString())["resourceSpans"]
        read = [pair["value"] for pair in resource["scopeSpans"][0]["spans"][0]["attributes"]]
        assert read == [
            {"intValue": "-9223372036854775808"},
            {"intValue": "9223372036854775807"},
            {"doubleValue": "NaN"},
            {"doubleValue": "-Infinity"},
            {"doubleValue": 0.1},
            {"bytesValue": base64.b64encode(b"\x00\xff").decode()},
            {"boolValue": False},
            {"stringValue": ""},
            None,
            {
                "kvlistValue": {
                    "values": [
                        {"key": "a", "value": {"arrayValue": {"values": [{"intValue": "1"}]}}}
                    ]
                }
            },
        ]
        json.dumps(read, allow_nan=False)

    def test_events_links_and_status_come_along(self):
        said = {"name": "gen_ai.choice", "attributes": pairs({"message": "from an event"})}
        one = tool_span(2, "get", result=None, events=[said], links=[
            {"traceId": SPANS[0]["traceId"], "spanId": SPANS[1]["spanId"]}
        ])  # fmt: skip
        whole = document(tool_span(9, "a"), one)
        assert events_of(read_document(as_protobuf(whole))) == events_of(whole)

    def test_an_empty_request_holds_no_spans(self):
        assert read_document(b"") == {"resourceSpans": []}

    def test_other_signals_are_no_spans(self):
        # A metric's name and description stand where a span has its ids.
        request = ExportTraceServiceRequest()
        metric = request.resource_spans.add().scope_spans.add().spans.add()
        metric.trace_id, metric.span_id = b"http.requests", b"How many requests came."
        with pytest.raises(WrongShape, match="missing or no id"):
            LiveSpans().add(read_document(request.SerializeToString()), 0.0)


class TestLimits:
    def test_a_request_over_the_limit_is_refused_unread(self):
        with pytest.raises(MessageTooLarge, match="the limit is 10"):
            read_document(WHOLE, 10)

    def test_many_small_values_are_refused(self, monkeypatch):
        monkeypatch.setattr(otlp_protobuf, "NODES_MAX", 100)
        request = ExportTraceServiceRequest()
        found = request.resource_spans.add().scope_spans.add().spans.add()
        for _ in range(101):
            found.attributes.add()
        with pytest.raises(MessageTooLarge, match="more than 100 values"):
            read_document(request.SerializeToString())

    def test_many_small_messages_are_refused_before_they_are_parsed(self, monkeypatch):
        monkeypatch.setattr(otlp_protobuf, "SCANNED_BYTES", 0)
        monkeypatch.setattr(otlp_protobuf, "NODES_MAX", 100)
        monkeypatch.setattr(otlp_protobuf, "ExportTraceServiceRequest", None)
        for count in (101, 5000):
            raw = b"\x12\x00" * count  # spans that hold nothing
            for tag in (b"\x12", b"\x0a"):
                raw = tag + _varint(len(raw)) + raw
            with pytest.raises(MessageTooLarge, match="more than 100 values"):
                read_document(raw)

    def test_a_large_request_is_read(self):
        spans = [tool_span(n, "get", result="x" * 1000, parent=1) for n in range(2, 1500)]
        raw = as_protobuf(document(agent_span(1), *spans))
        assert len(raw) > otlp_protobuf.SCANNED_BYTES
        assert len(events_of(read_document(raw))) == 1500

    def test_what_is_nested_too_deep_is_refused(self):
        raw = b""
        for _ in range(200):  # an array in an array
            raw = b"\x0a" + _varint(len(raw)) + raw
            raw = b"\x2a" + _varint(len(raw)) + raw
        for tag in (b"\x12", b"\x4a", b"\x12", b"\x12", b"\x0a"):
            raw = tag + _varint(len(raw)) + raw
        with pytest.raises(WrongShape, match="no OTLP request"):
            read_document(raw)

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_nothing_is_inflated_beyond_the_limit(self, encoding):
        raw = {
            "gzip": gzip.compress,
            "deflate": zlib.compress,
            "zstd": zstandard.compress,
        }[encoding](bytes(30_000_000))
        assert len(raw) < 40_000
        with pytest.raises(MessageTooLarge, match="when inflated"):
            inflated(raw, encoding, 1_000_000)
        assert inflated(raw, encoding, 30_000_000) == bytes(30_000_000)
        with pytest.raises(WrongShape):
            inflated(raw[:-1], encoding, 30_000_000)
        with pytest.raises(WrongShape):
            inflated(raw + b"more", encoding, 30_000_000)


class TestAnswers:
    def test_full_success_says_nothing(self):
        assert response_protobuf() == b""
        assert response_json() == b"{}"

    def test_partial_success_says_how_many_and_why(self):
        said = ExportTraceServiceResponse.FromString(response_protobuf(3, "no id")).partial_success
        assert (said.rejected_spans, said.error_message) == (3, "no id")
        assert json.loads(response_json(3, "no id")) == {
            "partialSuccess": {"rejectedSpans": "3", "errorMessage": "no id"}
        }

    @given(st.integers(0, 16), st.text())
    def test_a_status_is_read_by_its_field_numbers(self, code, message):
        # A message with a number in field 1 and a text in field 2, as google.rpc.Status.
        raw = status_protobuf(code, message)
        assert raw[0] == 0x08
        assert raw[1] == code
        assert raw[2] == 0x12
        size, at, shift = 0, 3, 0
        while True:
            size |= (raw[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if raw[at - 1] < 0x80:
                break
        assert raw[at:].decode() == message.encode("utf-8", "replace").decode()
        assert size == len(raw) - at


class TestFiles:
    @pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
    def test_a_collectors_file_is_recognised_and_read(self, tmp_path, suffix):
        parts = [as_protobuf(document(one)) for one in SPANS]
        raw = delimited(*parts)
        compress = {
            "": bytes,
            ".gz": gzip.compress,
            ".xz": lzma.compress,
            ".zst": zstandard.compress,
        }[suffix]
        path = tmp_path / f"spans.binpb{suffix}"
        path.write_bytes(compress(raw))
        reader = read_events([tmp_path])  # a folder: the suffix is one that is looked for
        steps = [found.event for found in reader if found.event.type == "step"]
        assert [(step.run_id, step.tool) for step in steps] == [("c1", "get"), ("c1", "put")]
        assert reader.recognised == {str(path): "otlp"}

    def test_one_bare_message_is_a_file_as_well(self, tmp_path):
        path = tmp_path / "request.bin"
        path.write_bytes(WHOLE)
        for options in ({}, {"format": "otlp"}):
            assert [found.event.tool for found in steps_in(path, **options)] == ["get", "put"]

    def test_standard_input_is_read(self):
        reader = read_events(["-"], stdin=io.BytesIO(delimited(WHOLE)))
        assert [found.event.type for found in reader].count("step") == 2

    def test_messages_that_are_compressed_one_by_one_are_read(self, tmp_path):
        path = tmp_path / "spans"
        as_json = [json.dumps(document(one)).encode() for one in SPANS]
        for parts in ([as_protobuf(document(one)) for one in SPANS], as_json):
            path.write_bytes(delimited(*map(zstandard.compress, parts)))
            assert len(steps_in(path)) == 2

    def test_a_damaged_message_is_named_and_the_others_are_read(self, tmp_path):
        path, bad = tmp_path / "spans", []
        parts = [as_protobuf(document(one)) for one in SPANS]
        damaged = parts[1][:-3] + b"\xff\xff\xff"
        path.write_bytes(delimited(parts[0], damaged, parts[2]))
        with pytest.raises(InvalidFile, match=r"spans:2: .*no OTLP request in protobuf"):
            list(read_events([path]))
        steps = steps_in(path, on_bad=lambda *found: bad.append(found))
        assert [found.event.tool for found in steps] == ["put"]
        assert steps[0].flags == (PARTIAL,)
        ((_, number, raw, error),) = bad
        assert (number, raw, type(error)) == (2, damaged, WrongShape)

    def test_a_file_that_is_cut_short_is_named_with_the_message(self, tmp_path):
        path = tmp_path / "spans"
        raw = delimited(*(as_protobuf(document(one)) for one in SPANS))
        for cut in (1, 50):
            path.write_bytes(raw[:-cut])
            with pytest.raises(InvalidFile, match=r"spans:3: .*cut short in message 3"):
                list(read_events([path]))
        path.write_bytes(raw + b"\xff\xff\xff\xff")
        with pytest.raises(InvalidFile, match=r"spans:4: .*4294967295 bytes"):
            list(read_events([path]))

    @given(st.text())
    def test_text_is_never_taken_for_protobuf(self, text):
        printable = "".join(each for each in text if each.isprintable() or each in "\n\r\t")
        assert not is_stream(printable.encode()[:256])
        assert not is_stream(f"\n\n{printable}".encode()[:256])


def spans_told(found):
    """Every event that could come of a document, as what must not change."""
    live = LiveSpans()
    return {
        (e.run_id, e.tool, str(e.args), str(e.result), e.error)
        for e in [*live.add(found, 0.0, on_bad=lambda _error: None), *live.rest()]
        if e.type == "step"
    }


class TestDamage:
    @given(st.integers(0, len(WHOLE) - 1))
    def test_a_cut_request_is_refused(self, size):
        if size:
            with pytest.raises(WrongShape):
                read_document(WHOLE[:size])

    @given(st.data())
    def test_flipped_bits_raise_nothing_but_invalid_events(self, data):
        raw = bytearray(WHOLE)
        for bit in data.draw(st.lists(st.integers(0, len(WHOLE) * 8 - 1), min_size=1, max_size=4)):
            raw[bit // 8] ^= 1 << bit % 8
        try:
            told = spans_told(read_document(bytes(raw)))
        except (WrongShape, MessageTooLarge):
            told = set()
        # What was a call may have lost or changed its text, but no call is there that was none.
        assert len(told) <= 2

    @given(st.binary(max_size=300), st.sampled_from([0, 1_000_000]))
    def test_other_bytes_give_no_event(self, raw, scanned):
        try:
            if scanned == 0:
                otlp_protobuf._check_count(raw)
                otlp_protobuf._check_count(WHOLE + raw)
            told = spans_told(read_document(raw))
        except WrongShape:
            told = set()
        assert told == set()

    @given(st.integers(0, len(WHOLE)), st.integers(1, 60), st.booleans())
    def test_interleaved_messages_give_no_wrong_event(self, at, size, is_json):
        other = json.dumps(document(*SPANS)).encode() if is_json else WHOLE
        raw = WHOLE[:at] + other[:size] + WHOLE[at:]
        try:
            told = spans_told(read_document(raw))
        except (WrongShape, MessageTooLarge):
            told = set()
        assert len(told) <= 2

    @given(st.data())
    def test_a_damaged_file_gives_events_of_it_or_an_error_that_names_it(
        self, tmp_path_factory, data
    ):
        path = tmp_path_factory.mktemp("d") / "spans"
        raw = bytearray(delimited(*(as_protobuf(document(one)) for one in SPANS)))
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        named, found = str(path), []
        try:
            found = steps_in(path, on_bad=lambda *_bad: None)
        except InvalidFile as error:
            named = error.path
        assert named == str(path)
        assert len(found) <= 2


def _varint(number):
    out = b""
    while number > 0x7F:
        out += struct.pack("B", number & 0x7F | 0x80)
        number >>= 7
    return out + struct.pack("B", number)


def test_a_span_without_a_call_is_no_step():
    assert spans_told(read_document(as_protobuf(document(span(1, {"http.route": "/"}))))) == set()
