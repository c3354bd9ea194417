"""What our models leave unsaid in their schemas, or say for programmers only."""

from __future__ import annotations

import re
from typing import Any, Final

_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")


def plainly_described(node: Any) -> Any:
    """Turn the models' docs into plain sentences: no markup, no sections on parameters."""
    if isinstance(node, list):
        return [plainly_described(item) for item in node]
    if not isinstance(node, dict):
        return node
    text = node.get("description")
    if isinstance(text, str):
        plain = " ".join(text.partition("\nParameters\n")[0].split()).replace("``", "`")
        node = node | {"description": _ROLE.sub(r"`\1`", plain)}
    return {name: plainly_described(child) for name, child in node.items()}


def require_type(schema: dict[str, Any]) -> None:
    """Say that records have their ``type``, in place.

    The models have a default for it; a union cannot do without, and a writer always gives it.
    """
    schema["required"] = [*schema.get("required", ()), "type"]
