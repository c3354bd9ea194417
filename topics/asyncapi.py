"""The topics as an AsyncAPI 3.0 document, generated from the models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ontrack.topics.catalog import Catalogue, TopicSpec

_SCHEMAS = "#/components/schemas/"
_RECEIVED = ("events", "proposals", "references", "contracts", "tasks")


def asyncapi_document(catalogue: Catalogue) -> dict[str, Any]:
    """Describe every topic, message and operation of OnTrack.

    Operations are OnTrack's own, as AsyncAPI asks: it receives events, proposals and knowledge
    and sends the rest.

    Source: AsyncAPI 3.0.0 with the Kafka bindings 0.5.0; CloudEvents 1.0 headers.
    """
    roles = {
        role: getattr(catalogue, role)
        for role in catalogue.__dataclass_fields__
        if role not in ("snapshots", "owners")  # between workers, nobody else's business
    }
    models = list(dict.fromkeys(model for spec in catalogue for model in spec.models))
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_SCHEMAS + "{model}"
    )
    messages = {model.__name__: _message(model) for model in models}
    messages["FleetAggregate"] = {
        "name": "FleetAggregate",
        "contentType": "application/json",
        "payload": {"type": "object"},
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "OnTrack",
            "version": "1",
            "description": "Events of LLM agent runs in; verdicts, interventions, scorecards out.",
        },
        "defaultContentType": "application/json",
        "channels": {role: _channel(spec) for role, spec in roles.items()},
        "operations": {
            _operation_name(role): _operation(role, spec) for role, spec in roles.items()
        },
        "components": {
            "messages": messages,
            "messageTraits": {"cloudEvent": _cloud_event()},
            "schemas": definitions.get("$defs", {}),
        },
    }


def _message_names(spec: TopicSpec) -> list[str]:
    return [model.__name__ for model in spec.models] or ["FleetAggregate"]


def _message(model: type[BaseModel]) -> dict[str, Any]:
    summary = (model.__doc__ or model.__name__).strip().splitlines()[0]
    return {
        "name": model.__name__,
        "summary": summary,
        "contentType": "application/json",
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "payload": {"$ref": f"{_SCHEMAS}{model.__name__}"},
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": "0.5.0"}},
    }


def _channel(spec: TopicSpec) -> dict[str, Any]:
    return {
        "address": spec.name,
        "description": f"{spec.carries}; keyed by {spec.key}",
        "messages": {
            name: {"$ref": f"#/components/messages/{name}"} for name in _message_names(spec)
        },
        "bindings": {
            "kafka": {
                "topic": spec.name,
                "partitions": spec.partitions,
                "replicas": spec.replication,
                "topicConfiguration": _topic_configuration(spec.settings),
                "bindingVersion": "0.5.0",
            }
        },
    }


def _topic_configuration(settings: dict[str, str]) -> dict[str, Any]:
    """Keep the settings that the Kafka binding knows, in its types."""
    known: dict[str, Any] = {"cleanup.policy": settings["cleanup.policy"].split(",")}
    for name in ("retention.ms", "delete.retention.ms", "max.message.bytes"):
        if name in settings:
            known[name] = int(settings[name])
    return known


def _operation_name(role: str) -> str:
    return f"{_action(role)}_{role}"


def _action(role: str) -> str:
    return "receive" if role in _RECEIVED else "send"


def _operation(role: str, spec: TopicSpec) -> dict[str, Any]:
    return {
        "action": _action(role),
        "channel": {"$ref": f"#/channels/{role}"},
        "summary": spec.carries,
        "messages": [
            {"$ref": f"#/channels/{role}/messages/{name}"} for name in _message_names(spec)
        ],
    }


def _cloud_event() -> dict[str, Any]:
    names = ("ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_subject")
    return {
        "headers": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in (*names, "content-type")},
        }
    }
