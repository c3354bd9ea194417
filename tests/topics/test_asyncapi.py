import json

import jsonschema
import pytest

from ontrack.topics.asyncapi import asyncapi_document
from ontrack.topics.catalog import catalogue
from ontrack.topics.codecs import encode
from ontrack.topics.events import RunEnded, Step

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
        if topic.name not in ("ontrack.snapshots", "ontrack.owners")
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
    jsonschema.Draft202012Validator.check_schema(DOCUMENT["components"]["schemas"][name])


@pytest.mark.parametrize("record", [Step(run_id="r", tool="t"), RunEnded(run_id="r")])
def test_an_encoded_event_satisfies_the_published_schema(record):
    schema = {
        "$ref": f"#/components/schemas/{type(record).__name__}",
        "components": DOCUMENT["components"],
    }
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(json.loads(encode(record)))
    assert not validator.is_valid({"type": record.type})


def test_the_document_is_json():
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
