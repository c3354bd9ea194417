"""CloudEvents 1.0 in structured mode: the record inside its envelope.

OnTrack writes binary mode (attributes in headers, the record as the value). Others may send the
whole event as one JSON object, ``application/cloudevents+json``; such a value is known by its
``specversion``, so whether the header came through does not matter.

Source: CloudEvents 1.0, JSON event format; Kafka protocol binding, structured content mode.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from ontrack.topics.errors import WrongShape
from ontrack.topics.jsontext import described, parse_leniently, shown

SPECVERSION: Final = "1.0"
_JSON_TYPES: Final = ("application/json", "text/json")


def is_envelope(value: object) -> bool:
    """Tell whether parsed JSON is a CloudEvent in structured mode, of any version."""
    return isinstance(value, dict) and "specversion" in value and "run_id" not in value


def unwrapped(envelope: dict[str, Any], quote: bool = False) -> tuple[Any, tuple[str, ...]]:
    """Return the record that an envelope carries, and the treatments that its text needed.

    A record without a ``type`` of its own gets it from the envelope's, ``ontrack.event.step``.

    Parameters
    ----------
    quote : bool
        Whether an error may quote what was found.

    Raises
    ------
    WrongShape
        Another version of CloudEvents, no data, or data that is no JSON object.
    MalformedMessage
        ``data_base64`` holds no JSON.
    """
    version = envelope["specversion"]
    if version != SPECVERSION:
        raise WrongShape(f"a CloudEvent of specversion {shown(version)}; expected {SPECVERSION!r}")
    media = envelope.get("datacontenttype")
    if not _is_json(media):
        raise WrongShape(
            f"a CloudEvent whose datacontenttype is {shown(media)}; expected application/json"
        )
    data: Any = envelope.get("data")
    flags: tuple[str, ...] = ()
    if data is None and envelope.get("data_base64") is not None:
        data, flags = parse_leniently(_bytes(envelope["data_base64"]), quote)
    if not isinstance(data, dict):
        raise WrongShape(
            "a CloudEvent in structured mode carries the event as a JSON object in `data`, "
            f"found {described(data)}"
        )
    kind = envelope.get("type")
    if "type" not in data and isinstance(kind, str):
        data = {**data, "type": kind.rpartition(".")[2]}
    return data, flags


def _is_json(media: object) -> bool:
    if media is None:
        return True
    plain = media.partition(";")[0].strip().lower() if isinstance(media, str) else ""
    return plain in _JSON_TYPES or plain.endswith("+json")


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise WrongShape(
            f"field `data_base64` of a CloudEvent should be base64, found {described(text)}"
        ) from None
