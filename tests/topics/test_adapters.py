import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ontrack.topics.adapters import FOREIGN, FORMATS, Origin, chat, corpus, sweagent
from ontrack.topics.adapters import events as native
from ontrack.topics.adapters.sweagent import tool_of
from ontrack.topics.codecs import decode_event, encode
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunEnded, RunStarted, Step

ORIGIN = Origin("file", "file")


def corpus_run(*calls, **fields):
    base = {"run_id": "0#0", "task_id": "7", "model": "m", "success": True, "reward": 1.0}
    return base | {"calls": list(calls)} | fields


def call(name="get", **fields):
    return {
        "id": "c1",
        "name": name,
        "args": {"id": 1},
        "ts": None,
        "result": "x",
        "error": None,
    } | (fields)


def function(name, arguments, call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answer(content, call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def steps_of(adapter, record):
    return [event for event in adapter.events(record, ORIGIN) if isinstance(event, Step)]


class TestCorpus:
    def test_a_recorded_run_becomes_a_start_a_step_a_call_and_an_end(self):
        record = corpus_run(call(), call("put", id=None), termination="user_stop")
        assert list(corpus.events(record, ORIGIN)) == [
            RunStarted(run_id="0#0", task_id="7", agent=Agent(id="m")),
            Step(run_id="0#0", seq=0, tool="get", args={"id": 1}, result="x", call_id="c1"),
            Step(run_id="0#0", seq=1, tool="put", args={"id": 1}, result="x"),
            RunEnded(run_id="0#0", outcome="success", reward=1.0, reason="user_stop"),
        ]

    def test_a_run_without_calls_still_starts_and_ends(self):
        started, ended = corpus.events(corpus_run(success=False, reward=0.0), ORIGIN)
        assert (started.type, ended.outcome, ended.reward) == ("run_started", "failure", 0.0)

    @pytest.mark.parametrize(
        ("error", "kept"),
        [
            (None, None),
            (False, None),
            (True, ErrorInfo(type="error")),
            ("not found", ErrorInfo(message="not found")),
        ],
    )
    def test_errors_keep_what_they_say(self, error, kept):
        assert steps_of(corpus, corpus_run(call(error=error)))[0].error == kept

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("2026-01-02T03:04:05.5", "2026-01-02T03:04:05.500000+00:00"),
            ("2026-01-02T03:04:05+02:00", "2026-01-02T03:04:05+02:00"),
            ("yesterday", None),
            (None, None),
        ],
    )
    def test_a_time_is_kept_when_it_parses(self, written, read):
        (step,) = steps_of(corpus, corpus_run(call(ts=written)))
        assert (step.time and step.time.isoformat()) == read

    def test_a_result_that_is_json_text_stays_text(self):
        assert steps_of(corpus, corpus_run(call(result='{"a": 1}')))[0].result == '{"a": 1}'

    def test_an_unknown_model_is_no_agent(self):
        assert next(corpus.events(corpus_run(model="?"), ORIGIN)).agent is None

    def test_an_empty_tool_name_is_a_step_in_which_no_tool_was_called(self):
        assert steps_of(corpus, corpus_run(call("")))[0].tool == "(no tool)"

    @pytest.mark.parametrize("wrong", [corpus_run("x"), corpus_run(call(None)), {"calls": []}, 3])
    def test_a_wrong_record_is_a_wrong_shape(self, wrong):
        with pytest.raises(WrongShape):
            list(corpus.events(wrong, ORIGIN))


class TestChat:
    MESSAGES = (
        {"role": "user", "content": "weather in Rome and Oslo?"},
        assistant(function("weather", '{"city": "Rome"}', "a"), function("weather", "{}", "b"),
                  content="I look both up."),
        answer("cold", "b"),
        answer('{"t": 30}', "a"),
        {"role": "assistant", "content": "30 and cold."},
    )  # fmt: skip

    def test_results_are_matched_by_the_id_of_the_call(self):
        record = {"messages": list(self.MESSAGES), "run_id": "r", "task_id": 5, "success": False}
        assert list(chat.events(record, ORIGIN)) == [
            RunStarted(run_id="r", task_id="5"),
            Step(
                run_id="r", seq=0, action="I look both up.", tool="weather",
                args={"city": "Rome"}, result='{"t": 30}', call_id="a",
            ),
            Step(
                run_id="r", seq=1, action="I look both up.", tool="weather",
                result="cold", call_id="b",
            ),
            RunEnded(run_id="r", outcome="failure"),
        ]  # fmt: skip

    def test_a_bare_list_of_messages_is_named_after_its_file(self):
        events = list(chat.events(list(self.MESSAGES), ORIGIN))
        assert {event.run_id for event in events} == {"file"}
        assert events[-1].outcome == "unknown"

    def test_a_call_without_a_result_is_a_step_without_one(self):
        assert steps_of(chat, [assistant(function("f", "{}"))])[0].result is None

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ('{"a": 1}', {"a": 1}),
            ({"a": 1}, {"a": 1}),
            ("", {}),
            (None, {}),
            ('{"a": ', {"_raw": '{"a": '}),
            ("[1]", {"_raw": "[1]"}),
            ("[" * 500, {"_raw": "[" * 500}),
        ],
    )
    def test_arguments_that_are_no_object_are_kept_raw(self, written, read):
        assert steps_of(chat, [assistant(function("f", written))])[0].args == read

    def test_an_id_used_again_is_answered_in_order(self):
        record = [
            assistant(function("f", "{}")), answer("first"),
            assistant(function("f", "{}")), answer("second"),
        ]  # fmt: skip
        assert [step.result for step in steps_of(chat, record)] == ["first", "second"]

    def test_a_result_is_never_older_than_its_call(self):
        assert steps_of(chat, [answer("old"), assistant(function("f", "{}"))])[0].result is None

    def test_parts_of_text_are_joined_and_other_parts_stay(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        image = [{"type": "image_url", "image_url": {"url": "x"}}]
        record = [assistant(function("f", "{}"), content=parts), answer(image)]
        (step,) = steps_of(chat, record)
        assert (step.action, step.result) == ("a\nb", image)

    def test_the_older_function_call_is_read_too(self):
        record = [
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "ok"},
        ]
        (step,) = steps_of(chat, record)
        assert (step.tool, step.result, step.action) == ("f", "ok", None)

    @pytest.mark.parametrize(
        "wrong",
        [
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            [{"role": "assistant", "tool_calls": 3}],
            [{"role": "user"}, "x"],
            [],
        ],
    )
    def test_a_wrong_record_is_a_wrong_shape(self, wrong):
        with pytest.raises(WrongShape):
            list(chat.events(wrong, ORIGIN))


class TestSweAgent:
    def test_a_trajectory_becomes_a_step_a_command(self):
        record = {
            "trajectory": [
                {"action": "cd /t && ls -F\n", "observation": "a.py", "thought": "Look."},
                {"action": "", "observation": "Exited", "thought": ""},
            ],
            "info": {"exit_status": "submitted", "model_stats": {"api_calls": 2}},
            "replay_config": json.dumps(
                {"problem_statement": {"id": "django-1"}, "agent": {"model": {"name": "m"}}}
            ),
        }
        assert list(sweagent.events(record, ORIGIN)) == [
            RunStarted(run_id="file", task_id="django-1", agent=Agent(id="m")),
            Step(
                run_id="file", seq=0, action="Look.", tool="ls",
                args={"command": "cd /t && ls -F\n"}, result="a.py",
            ),
            Step(
                run_id="file", seq=1, tool="(no tool)", args={"command": ""}, result="Exited"
            ),
            RunEnded(run_id="file", outcome="unknown", reason="submitted"),
        ]  # fmt: skip

    def test_a_file_is_named_after_its_task_unless_the_record_says_more(self):
        assert next(sweagent.events({"trajectory": []}, ORIGIN)).task_id == "file"
        assert next(sweagent.events({"trajectory": []}, Origin("stdin"))).task_id is None

    def test_a_history_gives_its_actions_with_the_observation_that_follows(self):
        record = {
            "history": [
                {"role": "user", "content": "fix it"},
                {"role": "assistant", "is_demo": True, "action": "demo", "thought": ""},
                {"role": "assistant", "content": "x", "thought": "Find.", "action": "find_file a",
                 "tool_calls": [function("find_file", '{"n":"a"}', "k")]},
                {"role": "tool", "content": [{"type": "text", "text": "1 match"}],
                 "tool_call_ids": ["k"]},
                {"role": "assistant", "content": "y", "thought": "", "action": "submit"},
            ]
        }  # fmt: skip
        assert steps_of(sweagent, record) == [
            Step(
                run_id="file", seq=0, action="Find.", tool="find_file",
                args={"command": "find_file a"}, result="1 match", call_id="k",
            ),
            Step(run_id="file", seq=1, tool="submit", args={"command": "submit"}),
        ]  # fmt: skip

    def test_the_first_mini_swe_format_has_its_command_in_a_fenced_block(self):
        record = {
            "trajectory_format": "mini-swe-agent-1",
            "info": {"exit_status": "Submitted", "config": {"model": {"model_name": "m"}}},
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "task"},
                {"role": "assistant", "content": "THOUGHT: look\n\n```bash\nls -la\n```"},
                {"role": "user", "content": "<output>\na\n</output>"},
                {"role": "assistant", "content": "two ```bash\na\n``` ```bash\nb\n```"},
            ],
        }
        started, step, ended = sweagent.events(record, ORIGIN)
        assert started.agent == Agent(id="m")
        assert (step.tool, step.args) == ("ls", {"command": "ls -la"})
        assert (step.action, step.result) == ("THOUGHT: look", "<output>\na\n</output>")
        assert ended.reason == "Submitted"

    def test_the_second_mini_swe_format_states_its_commands(self):
        record = {
            "info": {"exit_status": "Submitted"},
            "messages": [
                {
                    "role": "assistant",
                    "content": "Both.",
                    "tool_calls": [function("bash", "{}", "a"), function("bash", "{}", "b")],
                    "extra": {
                        "actions": [
                            {"command": "cat x", "tool_call_id": "a"},
                            {"command": "cat y", "tool_call_id": "b"},
                        ]
                    },
                },
                answer("Y", "b"),
                answer("X", "a"),
                {"role": "exit", "content": ""},
            ],
        }
        assert [(s.args["command"], s.result) for s in steps_of(sweagent, record)] == [
            ("cat x", "X"),
            ("cat y", "Y"),
        ]

    def test_tool_calls_are_used_where_nothing_states_the_commands(self):
        record = {
            "trajectory_format": "mini-swe-agent-1.1",
            "messages": [assistant(function("bash", '{"command": "ls"}')), answer("a")],
        }
        (step,) = steps_of(sweagent, record)
        assert (step.tool, step.result, step.call_id) == ("ls", "a", "c1")

    @pytest.mark.parametrize(
        ("command", "tool"),
        [
            ("ls", "ls"),
            ("  python -m pytest -q", "python"),
            ("cd /testbed && python x.py", "python"),
            ("cd '/a b' ; FOO=1 BAR='x y' make all", "make"),
            ("cd /a && cd b && ls", "ls"),
            ("cd /testbed", "cd"),
            ("# look first\ngrep -r x .", "grep"),
            ("(cd /a && ls)", "ls"),
            ("cat a|wc", "cat"),
            ("./run.sh;ls", "./run.sh"),
            ("A=1", "A=1"),
            (" \n ", "(no tool)"),
            ("x" * 1000, "x" * 256),
        ],
    )
    def test_the_tool_is_the_first_word_of_the_command(self, command, tool):
        assert tool_of(command) == tool

    @given(st.text(alphabet="ab=' \"\n#(cd&;/", max_size=60))
    def test_every_command_has_a_tool_name_that_events_accept(self, command):
        assert Step(run_id="r", tool=tool_of(command)).tool

    def test_long_commands_without_an_end_are_read_once(self):
        # With a pattern that backtracks, these would not come back.
        for command in ("A='" * 50_000, "cd " * 100_000, "A=" + "x" * 300_000, "(" * 300_000):
            assert len(tool_of(command)) <= 256


SAMPLES = {
    "corpus": corpus_run(call()),
    "sweagent": {"trajectory": [{"action": "ls", "observation": ""}], "info": {}},
    "chat": {"messages": list(TestChat.MESSAGES)},
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_record_is_recognised_by_its_own_format_first(name):
    first = next(adapter for adapter in FOREIGN if adapter.recognise(SAMPLES[name]))
    assert first.name == name
    assert not native.recognise(SAMPLES[name])


def test_every_format_has_a_name_of_its_own():
    assert FORMATS[:4] == ("events", "corpus", "sweagent", "chat")
    assert len(set(FORMATS)) == len(FORMATS)


FIELDS = [
    "calls",
    "run_id",
    "messages",
    "role",
    "trajectory",
    "action",
    "history",
    "info",
    "type",
    "name",
    "tool_calls",
    "content",
    "function",
    "arguments",
    "extra",
    "actions",
    "command",
    "tool_call_id",
    "tool_call_ids",
    "thought",
    "exit_status",
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["assistant", "tool", "", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=8,
)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant", "tool", "user"])},
    optional={field: anything for field in FIELDS if field != "role"},
)
records = anything | st.one_of(
    st.fixed_dictionaries({"messages": st.lists(turns, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"history": st.lists(turns, max_size=4)}),
    st.fixed_dictionaries(
        {
            "messages": st.lists(turns | anything, max_size=4),
            "trajectory_format": st.just("mini-swe-agent"),
        },
        optional={"info": anything, "replay_config": anything, "model": anything},
    ),
    st.fixed_dictionaries({"run_id": anything, "calls": st.lists(anything, max_size=3)}),
)


@given(records)
@example({"history": [{"role": "assistant"}, {"role": "tool", "tool_call_ids": True}]})
@example({"history": [{"role": "assistant", "tool_calls": 3, "extra": {"actions": 3}}]})
def test_any_record_gives_events_or_a_wrong_shape(record):
    for adapter in FOREIGN:
        assert adapter.recognise(record) in (True, False)
        try:
            events = list(adapter.events(record, ORIGIN))
        except WrongShape as error:
            assert str(error)  # noqa: PT017
        else:
            assert [events[0].type, events[-1].type] == ["run_started", "run_ended"]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_what_adapters_yield_goes_through_the_door_of_the_topic_unchanged(name):
    adapter = next(adapter for adapter in FOREIGN if adapter.name == name)
    for event in adapter.events(SAMPLES[name], ORIGIN):
        assert decode_event(encode(event)) == (event, ())


@pytest.mark.parametrize(
    ("head", "is_event"),
    [
        ({"type": "step"}, True),
        ({"run_id": "r", "type": "stepp"}, True),
        ({"run_id": "r", "tool": "t"}, True),
        ({"type": "message"}, False),
        ([], False),
    ],
)
def test_an_event_line_is_recognised_even_when_it_is_wrong(head, is_event):
    assert native.recognise(head) is is_event


def test_a_trajectory_that_is_null_leaves_the_history_to_be_read():
    history = [{"role": "assistant", "action": "ls", "thought": "look"}]
    (step,) = steps_of(sweagent, {"trajectory": None, "history": history})
    assert step.args == {"command": "ls"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"trajectory": {"action": "ls"}}, "trajectory: expected a list"),
        ({"trajectory": "ls"}, "trajectory: expected a list"),
        ({"trajectory": [{"action": 5}]}, r"trajectory\[0\].action: expected a text"),
    ],
)
def test_a_trajectory_of_another_kind_is_refused_beside_a_good_history(damage, said):
    history = [{"role": "assistant", "action": "ls"}]
    with pytest.raises(WrongShape, match=said):
        steps_of(sweagent, {"history": history} | damage)


def test_a_history_of_another_kind_is_refused_beside_good_messages():
    messages = [{"role": "assistant", "content": "```bash\nls\n```"}]
    record = {"messages": messages, "info": {"exit_status": "done"}}
    assert [step.tool for step in steps_of(sweagent, record)] == ["ls"]
    with pytest.raises(WrongShape, match="history: expected a list"):
        steps_of(sweagent, record | {"history": {}})
