"""Tool calls and tool errors of recorded files, counted from the raw JSON without any adapter."""

import io
import json
import lzma
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

#: Ids of calls as providers write them; names of fields such as ``call_id`` are shorter.
_CALL_ID = re.compile(r"\b(?:call_|toolu_)[A-Za-z0-9]{20,}")
_ZSTANDARD = 93


def records(path: Path) -> list[Any]:
    """The JSON values of a file: its lines, or the whole of it, or a zip archive's samples."""
    raw = path.read_bytes()
    if path.suffix == ".eval":
        return [json.loads(text) for text in zipped(raw, "samples/")]
    text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return found if isinstance(found, list) else [found]


def zipped(raw: bytes, prefix: str) -> Iterator[bytes]:
    """The files of an archive; Python's own reader knows no Zstandard before 3.14."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for info in archive.infolist():
            if not info.filename.startswith(prefix):
                continue
            if info.compress_type != _ZSTANDARD:
                yield archive.read(info)
                continue
            name, extra = raw[info.header_offset + 26 :][:2], raw[info.header_offset + 28 :][:2]
            sizes = int.from_bytes(name, "little") + int.from_bytes(extra, "little")
            start = info.header_offset + 30 + sizes
            packed = raw[start : start + info.compress_size]
            yield zstandard.ZstdDecompressor().decompressobj().decompress(packed)


def every(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a value, at any depth."""
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from every(item)
    if isinstance(value, dict):
        yield value


def of_events(path: Path) -> tuple[int, int]:
    steps = [line for line in records(path) if line["type"] == "step"]
    return len(steps), sum("error" in step for step in steps)


def of_corpus(path: Path) -> tuple[int, int]:
    calls = [call for run in records(path) for call in run["calls"]]
    return len(calls), sum(bool(call["error"]) for call in calls)


def of_chat(path: Path) -> tuple[int, int]:
    """OpenAI's calls are items of ``tool_calls``, Anthropic's are blocks."""
    found = list(every(records(path)))
    calls = [o for o in found if "function" in o or o.get("type") == "tool_use"]
    failed = [o for o in found if o.get("is_error") or (o.get("role") == "tool" and "error" in o)]
    return len(calls), len(failed)


def of_sweagent(path: Path) -> tuple[int, int]:
    """The entries, or the actions of those who are no example, or what stands in fences."""
    (run,) = records(path)
    if "trajectory" in run:
        return len(run["trajectory"]), 0
    if "history" in run:
        return sum("action" in turn and not turn.get("is_demo") for turn in run["history"]), 0
    return sum("```bash\n" in turn["content"] for turn in run["messages"]), 0


def of_otlp(path: Path) -> tuple[int, int]:
    spans = [o for o in every(records(path)) if "spanId" in o]
    tools = [
        span
        for span in spans
        if {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}}
        in span["attributes"]
    ]
    return len(tools), sum(span.get("status", {}).get("code") == 2 for span in tools)


def of_openai_agents(path: Path) -> tuple[int, int]:
    ended = [line["data"] for line in records(path) if line["event"] == "span_end"]
    calls = [span for span in ended if span["span_data"]["type"] == "function"]
    return len(calls), sum(span["error"] is not None for span in calls)


def of_inspect(path: Path) -> tuple[int, int]:
    calls = [o for o in every(records(path)) if o.get("event") == "tool"]
    return len(calls), sum(bool(call.get("error")) for call in calls)


def of_claude_code(path: Path) -> tuple[int, int]:
    """A call is repeated where a message is; what other lines embed is no part of the session."""
    calls, failed = set(), set()
    for line in records(path):
        content = line["message"]["content"] if line["type"] in ("user", "assistant") else []
        for block in content if isinstance(content, list) else []:
            if block["type"] == "tool_use":
                calls.add(block["id"])
            if block["type"] == "tool_result" and block.get("is_error"):
                failed.add(block["tool_use_id"])
    return len(calls), len(failed)


def of_langfuse(path: Path) -> tuple[int, int]:
    """Calls have ids of providers, or an observation of their own; BeeAI's iterations have neither.

    A call's id stands in what was asked for, in the observation and in what came back.
    """
    begun = [o for o in every(records(path)) if "startTime" in o or "start_time" in o]
    found = list({o["id"]: o for o in begun}.values())  # some stand in their trace as well
    tools = [o for o in found if o["type"] == "TOOL"]
    iterations = {
        o["parentObservationId"]
        for o in found
        if '"agent.react.' in str(o["metadata"]) and '"tool.name"' in str(o["metadata"])
    }
    by_trace: dict[Any, set[str]] = {}
    for o in found:
        ids = by_trace.setdefault(o.get("trace_id"), set())
        ids.update(_CALL_ID.findall(json.dumps(o)))
    calls = max(sum(map(len, by_trace.values())), len(tools), len(iterations))
    return calls, sum(o["level"] == "ERROR" for o in tools)


def of_atif(path: Path) -> tuple[int, int]:
    turns = [
        o for o in every(records(path)) if "tool_calls" in o and not o.get("is_copied_context")
    ]
    results = [result for turn in turns for result in turn["observation"]["results"]]
    failed = sum(bool(result.get("extra", {}).get("is_error")) for result in results)
    return sum(len(turn["tool_calls"]) for turn in turns), failed


#: By the folder that a file stands in.
COUNTERS = {
    "atif": of_atif,
    "chat": of_chat,
    "claude-code": of_claude_code,
    "corpus": of_corpus,
    "events": of_events,
    "inspect": of_inspect,
    "langfuse": of_langfuse,
    "openai-agents": of_openai_agents,
    "otlp": of_otlp,
    "sweagent": of_sweagent,
}
