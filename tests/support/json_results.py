"""Checks of the JSON that commands write against `bigscreen/report/schemas.json`."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS: dict[str, Any] = json.loads((files("bigscreen.report") / "schemas.json").read_text())


def described(command: str) -> dict[str, Any]:
    """Return the self-contained schema of one command."""
    return {**SCHEMAS["$defs"][command], "$defs": SCHEMAS["$defs"]}


def check_result(path: Path) -> None:
    """Fail unless the file matches its command's schema, which must describe every field."""
    record = json.loads(path.read_text())
    name, command, version = record["schema"].split("/")
    assert (name, version) == ("bigscreen", "1")
    schema = described(command)
    Draft202012Validator(schema).validate(record)
    known = set(schema["properties"])
    for part in schema.get("allOf", []) + schema.get("anyOf", []):
        if "$ref" in part:
            known |= set(SCHEMAS["$defs"][part["$ref"].rpartition("/")[2]]["properties"])
    assert set(record) <= known, (
        f"{command} --json: {sorted(set(record) - known)} are not described"
    )
