"""The JSON schemas that users get, and a check of a document by one."""

import json
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def schema(name: str) -> Any:
    """The schema of a name, if it is one."""
    found = json.loads((FOLDER / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def problems(document: Any, name: str) -> list[str]:
    """What does not fit, with its place; also keys that the schema does not name."""
    found = _closed(schema(name))
    errors = jsonschema.Draft202012Validator(found).iter_errors(document)
    return [f"{'/'.join(map(str, error.path))}: {error.message}" for error in errors]


def _closed(node: Any) -> Any:
    """A schema that takes no other keys: what the tool writes must be in it, though users may meet more."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value) for key, value in node.items()}
    if "required" in node and "additionalProperties" not in node:
        closed["additionalProperties"] = False
    return closed
