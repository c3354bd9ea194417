"""Settings: flag over variable over file; mistakes are named; secrets are not shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ontrack.pipeline.settings import Settings, load_settings, masked
from ontrack.topics.errors import InvalidSettings


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the developer's takes part."""
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_a_flag_wins_over_a_variable_which_wins_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load_settings().group == "ontrack"
    (tmp_path / "ontrack.toml").write_text('group = "file"\npartitions = 7\n')
    assert load_settings().group == "file"
    monkeypatch.setenv("ONTRACK_GROUP", "variable")
    assert load_settings().group == "variable"
    assert load_settings(group="flag").group == "flag"
    assert load_settings(group="flag").partitions == 7
    assert load_settings(group=None).group == "variable"  # a flag that was not given


def test_another_file_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ontrack.toml").write_text('group = "near"')
    (tmp_path / "far.toml").write_text('group = "far"')
    monkeypatch.setenv("ONTRACK_CONFIG", str(tmp_path / "far.toml"))
    assert load_settings().group == "far"


def test_a_named_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_CONFIG", "gone.toml")
    with pytest.raises(InvalidSettings, match=r"ONTRACK_CONFIG names 'gone.toml'"):
        load_settings()


@pytest.mark.parametrize("content", [b"group = ", b"\xff\xfe", b"group 7"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ontrack.toml").write_bytes(content)
    with pytest.raises(InvalidSettings, match=r"ontrack\.toml"):
        load_settings()


def test_a_misspelt_variable_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_BORKER", "somewhere:9092")
    with pytest.raises(InvalidSettings, match="ONTRACK_BORKER.*no such setting"):
        load_settings()


def test_a_misspelt_name_in_the_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "ontrack.toml").write_text("partitoins = 3")
    with pytest.raises(InvalidSettings, match="partitoins: no such setting"):
        load_settings()


def test_variables_of_the_tests_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_TEST_BROKER", "127.0.0.1:9999")
    assert load_settings().broker == "127.0.0.1:9092"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", "0"),
        ("partitions", "two"),
        ("replication", "0"),
        ("web_port", "65536"),
        ("message_bytes_max", "5"),
        ("depth_max", "0"),
        ("batch_events_max", "0"),
        ("watermark_check_s", "0"),
        ("encoder_cache_entries", "0"),
        ("ended_runs_max", "0"),
        ("encoder", "word2vec"),
        ("security_protocol", "TLS"),
        ("log_level", "loud"),
        ("intervene", "perhaps"),
        ("topic_prefix", "a b"),
        ("broker", ""),
        ("broker", "host:port"),
        ("broker", "host:0"),
        ("broker", "host:99999"),
        ("broker", "a:1,,b:2"),
        ("web_advertised_url", "gate.example:1"),
        ("web_token", ""),
        ("gate_deadline_ms", "-1"),
        ("gate_fail_open", "read,reed"),
        ("gate_decision_ttl_s", "0"),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"ONTRACK_{name.upper()}", value)
    with pytest.raises(InvalidSettings, match=f"{name} .*ONTRACK_{name.upper()}"):
        load_settings()


@pytest.mark.parametrize("value", ["localhost", "localhost:9092", "a:1, b:2", "[::1]:9092"])
def test_servers_are_hosts_with_or_without_a_port(value: str) -> None:
    assert load_settings(broker=value).broker == value


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(InvalidSettings, match="(?s)partitions.*web_port"):
        load_settings(partitions=0, web_port=-1)


@pytest.mark.parametrize(
    ("value", "means"), [("0", False), ("false", False), ("1", True), ("true", True)]
)
def test_variables_are_text_and_become_what_the_setting_is(
    monkeypatch: pytest.MonkeyPatch, value: str, means: bool
) -> None:
    monkeypatch.setenv("ONTRACK_INTERVENE", value)
    assert load_settings().intervene is means


def test_the_limits_of_the_codec_come_from_the_settings() -> None:
    limits = load_settings(message_bytes_max=2048, depth_max=5).limits
    assert (limits.message_bytes, limits.depth) == (2048, 5)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings().group = "other"  # type: ignore[misc]


def test_a_secret_is_masked_wherever_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_SASL_PASSWORD", "hunter2")
    found = load_settings()
    shown = [str(masked(found)), repr(found), str(found), found.model_dump_json()]
    assert not [text for text in shown if "hunter2" in text]
    assert masked(found)["sasl_password"] == "**********"
    assert found.sasl_password is not None
    assert found.sasl_password.get_secret_value() == "hunter2"


def test_an_error_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_SASL_PASSWORD", "hunter2")
    monkeypatch.setenv("ONTRACK_PARTITIONS", "0")
    with pytest.raises(InvalidSettings) as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_sasl_without_its_parts_says_what_is_missing() -> None:
    from ontrack.pipeline.kafka.connection import client_arguments

    given: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT"}
    for name, value in (
        ("sasl_mechanism", "PLAIN"),
        ("sasl_username", "me"),
        ("sasl_password", "hunter2"),
    ):
        with pytest.raises(InvalidSettings, match=f"ONTRACK_{name.upper()}"):
            client_arguments(load_settings(**given))
        given[name] = value
    assert client_arguments(load_settings(**given))["sasl_plain_password"] == "hunter2"


def test_a_certificate_that_is_not_there_is_named() -> None:
    from ontrack.pipeline.kafka.connection import client_arguments

    wrong = load_settings(security_protocol="SSL", ssl_cafile="gone.pem")
    with pytest.raises(InvalidSettings, match=r"gone\.pem"):
        client_arguments(wrong)


def test_every_setting_has_a_default_that_is_valid() -> None:
    assert load_settings() == Settings()


def test_every_setting_and_every_default_stands_in_the_operating_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    missing = [name for name in Settings.model_fields if f"`{name}`" not in guide]
    assert missing == []
    numbers = {
        name: field.default
        for name, field in Settings.model_fields.items()
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    }
    assert [n for n, value in numbers.items() if f"| `{n}` | {value} |" not in guide] == []


@pytest.mark.parametrize(
    ("value", "means"), [("read, write", ("read", "write")), ("read", ("read",)), ("", ())]
)
def test_effect_classes_are_a_list_with_commas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, means: tuple[str, ...]
) -> None:
    assert load_settings().gate_fail_open == ("read",)
    (tmp_path / "ontrack.toml").write_text('gate_fail_open = ["unknown"]')
    assert load_settings().gate_fail_open == ("unknown",)
    monkeypatch.setenv("ONTRACK_GATE_FAIL_OPEN", value)
    assert load_settings().gate_fail_open == means


@pytest.mark.parametrize("given", ["a token\n", "a token\r\n", " a token "])
def test_the_line_end_of_a_token_from_a_file_is_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("ONTRACK_WEB_TOKEN", given)
    found = load_settings().web_token
    assert found is not None
    assert found.get_secret_value() == "a token"


@pytest.mark.parametrize("given", [" ", "\n", "a\ntoken", "a\x00token"])
def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(given: str) -> None:
    with pytest.raises(InvalidSettings, match="web_token") as caught:
        load_settings(web_token=given)
    assert "token" not in str(caught.value).replace("web_token", "").replace("WEB_TOKEN", "")


def test_the_token_of_the_pages_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_WEB_TOKEN", "hunter2")
    found = load_settings()
    assert "hunter2" not in f"{masked(found)} {found!r}"
    assert masked(found)["web_token"] == "**********"
