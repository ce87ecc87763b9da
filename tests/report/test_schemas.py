"""The schemas of the JSON that commands write."""

import json

import pytest
from json_results import SCHEMAS, check_result
from jsonschema import Draft202012Validator, ValidationError

from bigscreen.cli.commands import group
from bigscreen.report.report import SCHEMA, write_result

COMMANDS = {
    name: command
    for name, command in group.commands.items()
    if any("--json" in parameter.opts for parameter in command.params)
}


def test_every_command_with_json_is_described():
    Draft202012Validator.check_schema(SCHEMAS)
    assert {part["$ref"] for part in SCHEMAS["oneOf"]} == {f"#/$defs/{name}" for name in COMMANDS}
    for name in COMMANDS:
        own = SCHEMAS["$defs"][name]
        assert own["properties"]["schema"] == {"const": f"bigscreen/{name}/{SCHEMA}"}
        assert "schema" in own["required"] and own["description"].endswith(".")


def test_what_is_not_described_is_found(tmp_path):
    out = tmp_path / "out.json"
    device = {"name": "cpu", "library": "NumPy"}
    found = {"out": "answers.csv", "rows": 3, "predicted": {"yes": 3}, "device": device}
    write_result(out, "predict", found)
    check_result(out)
    Draft202012Validator(SCHEMAS).validate(json.loads(out.read_text()))
    write_result(out, "predict", {**found, "more": 1})
    with pytest.raises(AssertionError, match="more"):
        check_result(out)
    write_result(out, "predict", {**found, "rows": "three"})
    with pytest.raises(ValidationError, match="three"):
        check_result(out)
