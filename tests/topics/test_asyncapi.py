import copy
import json
import warnings
from collections.abc import Callable
from typing import Any

import jsonschema
import pydantic
import pytest

from ontrack.topics.asyncapi import asyncapi_document
from ontrack.topics.catalog import catalogue
from ontrack.topics.codecs import encode, event_headers
from ontrack.topics.events import RunEnded, Step

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # its models have fields called `schema`
    from asyncapi3.models.asyncapi import AsyncAPI3

DOCUMENT = asyncapi_document(catalogue())


def resolve(reference: str):
    node = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def references(node):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from references(child)


def test_every_topic_is_a_channel_with_its_kafka_settings():
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == {
        topic.name
        for topic in catalogue()
        if topic.name not in ("ontrack.snapshots", "ontrack.owners", "ontrack.fleet-states")
    }
    kafka = DOCUMENT["channels"]["events"]["bindings"]["kafka"]
    assert (kafka["topic"], kafka["partitions"]) == ("ontrack.events", 4)
    assert kafka["topicConfiguration"]["cleanup.policy"] == ["delete"]
    assert DOCUMENT["asyncapi"] == "3.0.0"


def test_every_reference_in_the_document_resolves():
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        assert isinstance(resolve(reference), dict)


def test_operations_use_messages_of_their_own_channel():
    assert len(DOCUMENT["operations"]) == len(DOCUMENT["channels"])
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] in ("send", "receive")
        channel = operation["channel"]["$ref"]
        assert operation["messages"]
        for message in operation["messages"]:
            assert message["$ref"].startswith(channel + "/messages/")


def test_every_message_has_a_payload_and_a_name():
    for name, message in DOCUMENT["components"]["messages"].items():
        assert message["name"] == name
        assert message["payload"]


@pytest.mark.parametrize("name", sorted(DOCUMENT["components"]["schemas"]))
def test_every_schema_is_a_valid_json_schema(name):
    jsonschema.Draft7Validator.check_schema(DOCUMENT["components"]["schemas"][name])


def test_a_public_model_of_the_specification_accepts_the_document():
    # Version 3.0 with the bindings of Kafka; fields that it does not know are refused.
    read = AsyncAPI3.model_validate(DOCUMENT)
    assert read.channels is not None
    assert len(read.channels.root) == len(DOCUMENT["channels"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.pop("info"),
        lambda document: document["channels"]["events"].update(adress="x"),
        lambda document: document["operations"]["receive_events"].update(action="get"),
        lambda document: document["channels"]["events"]["bindings"]["kafka"].update(partition=1),
        lambda document: document["components"]["messageTraits"]["cloudEvent"].update(payload={}),
    ],
)
def test_that_model_refuses_a_document_with_a_fault(damage: Callable[[Any], object]):
    damaged = copy.deepcopy(DOCUMENT)
    damage(damaged)
    with pytest.raises(pydantic.ValidationError):
        AsyncAPI3.model_validate(damaged)


def test_headers_that_we_write_are_as_the_document_says():
    told = DOCUMENT["components"]["messageTraits"]["cloudEvent"]["headers"]
    headers = event_headers(
        event_id="r:0",
        source="ontrack",
        event_type="ontrack.verdict",
        time="2026-01-01T00:00:00Z",
        subject="r",
    )
    texts = {name: value.decode() for name, value in headers}
    validator = jsonschema.Draft7Validator(told)
    validator.validate(texts)
    assert texts.keys() == told["properties"].keys()
    for name in told["required"]:
        assert not validator.is_valid({key: texts[key] for key in texts if key != name})


def test_a_tuple_is_told_place_by_place():
    schema = DOCUMENT["components"]["schemas"]["DeadLetter"]["properties"]["headers"]
    validator = jsonschema.Draft7Validator(schema)
    assert validator.is_valid([["a", "b"], ["c", None]])
    assert not validator.is_valid([[None, "b"]])


@pytest.mark.parametrize("record", [Step(run_id="r", tool="t"), RunEnded(run_id="r")])
def test_an_encoded_event_satisfies_the_published_schema(record):
    schema = {
        "$ref": f"#/components/schemas/{type(record).__name__}",
        "components": DOCUMENT["components"],
    }
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(json.loads(encode(record)))
    assert not validator.is_valid({"type": record.type})


def test_the_document_is_json():
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
