"""JSON schemas written by hand, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

REF = "#/components/schemas/{model}"
"""Where the document has the schema of a name."""


def ref(name: str) -> Schema:
    return {"$ref": REF.format(model=name)}


def an_object(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}
