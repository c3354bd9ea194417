import io
import json
import struct
import zipfile
import zlib

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontrack.pipeline.reading import eval_archive
from ontrack.pipeline.reading.eval_archive import BadArchive, samples
from ontrack.pipeline.reading.readers import read_events
from ontrack.pipeline.reading.sources import Source, expand
from ontrack.topics.errors import InvalidFile

HEADER = {"version": 2, "status": "success", "eval": {"task": "t", "model": "m", "eval_id": "e"}}


def sample(number, tool="get"):
    event = {"event": "tool", "id": "c", "function": tool, "arguments": {}, "result": "x" * 50}
    return {"id": number, "epoch": 1, "events": [event], "scores": {"s": {"value": "C"}}}


def files(*numbers, header="header.json"):
    named = {f"samples/{n}_epoch_1.json": json.dumps(sample(n)).encode() for n in numbers}
    return {**named, "summaries.json": b"[]", header: json.dumps(HEADER).encode()}


def compressed(content, method):
    if method == zipfile.ZIP_DEFLATED:
        deflate = zlib.compressobj(wbits=-15)
        return deflate.compress(content) + deflate.flush()
    return zstandard.ZstdCompressor().compress(content) if method == 93 else content


def archive(contents, method=93, claims=None):
    """Write a zip file by hand: Python's own writer knows no Zstandard before 3.14."""
    body, directory = b"", b""
    for name, content in contents.items():
        packed = compressed(content, method)
        size = (claims or {}).get(name, len(content))
        shared = struct.pack(
            "<HHHHHIII", 20, 0, method, 0, 0, zlib.crc32(content), len(packed), size
        )
        path = name.encode()
        place = struct.pack("<HHHHHII", len(path), 0, 0, 0, 0, 0, len(body))
        directory += b"PK\x01\x02\x14\x00" + shared + place + path
        body += b"PK\x03\x04" + shared + struct.pack("<HH", len(path), 0) + path + packed
    end = struct.pack("<HHHHIIH", 0, 0, len(contents), len(contents), len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


def read(content):
    return [json.loads(line) for line in samples(io.BytesIO(content))]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 93])
def test_each_sample_comes_as_a_log_of_one_sample(method):
    found = read(archive(files(2, 10, 1), method))
    assert [log["samples"][0] for log in found] == [sample(1), sample(2), sample(10)]
    assert {log["eval"]["task"] for log in found} == {"t"}


def test_the_standard_librarys_archives_are_read_too():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in files(1, 2).items():
            written.writestr(name, content)
    assert len(read(buffer.getvalue())) == 2


def test_a_log_that_was_not_finished_has_its_header_in_the_journal():
    assert len(read(archive(files(1, header="_journal/start.json")))) == 1


def test_an_archive_is_a_source_like_any_other(tmp_path):
    path = tmp_path / "a.eval"
    path.write_bytes(archive(files(1, 2)))
    reader = read_events([tmp_path])
    found = list(reader)
    assert reader.recognised == {str(path): "inspect"}
    assert [(item.event.type, item.event.run_id, item.line) for item in found] == [
        (kind, f"e/{n}@1", n) for n in (1, 2) for kind in ("run_started", "step", "run_ended")
    ]
    assert next(expand([tmp_path])) == Source(str(path))
    assert Source(str(path)).stem == "a"


def test_an_archive_may_be_stdin_where_stdin_is_a_file(tmp_path):
    path = tmp_path / "a.eval"
    path.write_bytes(archive(files(1)))
    with path.open("rb") as stdin:
        assert len(list(read_events(["-"], stdin=stdin))) == 3

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    with pytest.raises(InvalidFile, match="save it to a file"):
        list(read_events(["-"], stdin=Pipe(path.read_bytes())))


def test_a_sample_that_is_no_json_is_named_by_its_number(tmp_path):
    contents = files(1, 2) | {"samples/2_epoch_1.json": b"{"}
    path = tmp_path / "a.eval"
    path.write_bytes(archive(contents))
    with pytest.raises(InvalidFile, match="no record of the format inspect") as caught:
        list(read_events([path]))
    assert caught.value.line == 2
    bad = []
    found = list(read_events([path], on_bad=lambda *what: bad.append(what[1])))
    assert (len(found), bad) == (3, [2])
    assert {item.flags for item in found} == {()}


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (archive({"a.txt": b"x"}), "no Inspect log"),
            (archive({}), "no Inspect log"),
            (archive(files()), "holds no samples"),
            (archive(files(1) | {"header.json": b"{}"}), "expected an Inspect log's `eval`"),
            (archive(files(1) | {"header.json": b"{"}), "header.json: not JSON"),
            (archive(files(1), claims={"samples/1_epoch_1.json": 10}), "longer than"),
            (archive(files(1), claims={"samples/1_epoch_1.json": 10_000}), "cut short"),
            (archive(files(1))[:-30], "damaged or cut short"),
            (archive(files(1), 99)[:], "unknown compression 99"),
            (b"PK\x03\x04", "damaged or cut short"),
        ],
    )
    def test_what_is_no_log_or_not_what_it_claims(self, content, said):
        with pytest.raises(BadArchive, match=said):
            read(content)

    def test_a_sample_over_the_limit_is_not_inflated(self, monkeypatch):
        monkeypatch.setattr(eval_archive, "SAMPLE_BYTES_MAX", 100)
        with pytest.raises(BadArchive, match="the limit is 100"):
            read(archive(files(1)))

    def test_a_file_that_grows_beyond_reason_is_refused_before_it_is_inflated(self):
        bomb = b"0" * (eval_archive.RATIO_FROM + 1)
        with pytest.raises(BadArchive, match="more than 1000 times as long"):
            read(archive(files(1) | {"samples/2_epoch_1.json": bomb}))

    def test_files_that_overlap_are_refused(self):
        content = archive(files(1))
        name = b"samples/1_epoch_1.json"
        entry = content.index(b"PK\x01\x02")
        second = content.index(b"PK\x01\x02", entry + 1)
        # The directory names the same place over and over, as overlapping bombs do.
        assert content[entry + 46 : entry + 46 + len(name)] == name
        copies = content[entry:second] * 200
        end = content.rindex(b"PK\x05\x06")
        directory = copies + content[second:end]
        count = 200 + 2
        tail = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), entry, 0)
        with pytest.raises(BadArchive, match="overlap"):
            read(content[:entry] + directory + b"PK\x05\x06" + tail)

    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_a_damaged_archive_is_an_error_of_the_file_or_gives_what_it_held(self, tmp_path, data):
        method = data.draw(st.sampled_from([0, 8, 93]))
        content = bytearray(archive(files(1, 2), method))
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(content) - 1))
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        del content[data.draw(st.integers(len(content) // 2, len(content))) :]
        path = tmp_path / "a.eval"
        path.write_bytes(bytes(content))
        try:
            found = list(read_events([path]))
        except InvalidFile as error:
            assert error.path == str(path)  # noqa: PT017
        else:
            assert {item.event.tool for item in found if item.event.type == "step"} <= {"get"}
