"""The topics as an AsyncAPI 3.0 document, generated from the models."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ontrack.topics.catalog import Catalogue, TopicSpec
from ontrack.topics.schemas.plain import plainly_described, require_type

_SCHEMAS = "#/components/schemas/"
_RECEIVED = ("events", "proposals", "references", "contracts", "tasks", "switches")
_BETWEEN_WORKERS: Final = ("snapshots", "owners", "fleet_states")  # nobody else's business
#: Headers that every message has; ``ce_subject`` is the run id, or the key of what is no run's.
_HEADERS: Final = ("ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "content-type")
_BINDING: Final = "0.5.0"


def asyncapi_document(catalogue: Catalogue) -> dict[str, Any]:
    """Describe every topic, message and operation of OnTrack.

    Operations are OnTrack's own, as AsyncAPI asks: it receives events, proposals and knowledge
    and sends the rest.

    Source: AsyncAPI 3.0.0 with the Kafka bindings 0.5.0; CloudEvents 1.0 headers.
    """
    roles = {
        role: getattr(catalogue, role)
        for role in catalogue.__dataclass_fields__
        if role not in _BETWEEN_WORKERS
    }
    modes: dict[type[BaseModel], Literal["validation", "serialization"]] = {
        model: "validation" if role in _RECEIVED else "serialization"
        for role, spec in roles.items()
        for model in spec.models
    }
    places, definitions = models_json_schema(
        list(modes.items()), ref_template=_SCHEMAS + "{model}", by_alias=True
    )
    for spec in roles.values():
        for model in spec.models:
            if len(spec.models) > 1 or modes[model] == "serialization":
                name = places[model, modes[model]]["$ref"].removeprefix(_SCHEMAS)
                require_type(definitions["$defs"][name])
    messages = {
        model.__name__: _message(model.__name__, _summary(model), places[model, mode])
        for model, mode in modes.items()
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
            "schemas": _in_the_default_format(plainly_described(definitions["$defs"])),
        },
    }


def _message_names(spec: TopicSpec) -> list[str]:
    return [model.__name__ for model in spec.models]


def _summary(model: type[BaseModel]) -> str:
    text = (model.__doc__ or model.__name__).strip().splitlines()[0]
    return text.replace("``", "`")


def _message(name: str, summary: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "summary": summary,
        "contentType": "application/json",
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "payload": payload,
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": _BINDING}},
    }


def _in_the_default_format(node: Any) -> Any:
    """Write tuples as AsyncAPI's own schema format has them, which is a draft-07 one."""
    if isinstance(node, list):
        return [_in_the_default_format(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {name: _in_the_default_format(child) for name, child in node.items()}
    if isinstance(found.get("prefixItems"), list):
        found["items"] = found.pop("prefixItems")
    return found


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
                "bindingVersion": _BINDING,
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
    texts: dict[str, Any] = {name: {"type": "string", "minLength": 1} for name in _HEADERS}
    texts["ce_specversion"] = {"type": "string", "const": "1.0"}
    texts["ce_time"]["format"] = "date-time"
    texts["ce_subject"] = {"type": "string"}
    return {"headers": {"type": "object", "properties": texts, "required": list(_HEADERS)}}
