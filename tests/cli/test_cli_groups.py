"""The help of commands that fit shows options under headings."""

import re

import click
import pytest
from cli_world import succeed

from bigscreen.cli.commands import group
from bigscreen.cli.options import GROUP_OF, GroupedCommand
from bigscreen.options import train, tuning
from bigscreen.options.option import GROUPS

GROUPED = [name for name, command in group.commands.items() if isinstance(command, GroupedCommand)]


def test_commands_that_fit_have_groups() -> None:
    assert set(GROUPED) == {"plan", "fit", "path", "tune", "resample"}
    assert {own.group for own in train.OPTIONS.values()} == set(GROUPS)
    assert {own.group for own in tuning.OPTIONS.values()} == {"Expert"}


@pytest.mark.parametrize("name", GROUPED)
def test_every_option_stands_once_under_the_heading_of_its_group(name: str) -> None:
    _, *parts = re.split(rf"^({'|'.join(GROUPS)}):$", succeed(name, "--help"), flags=re.MULTILINE)
    assert parts[::2] == list(GROUPS)
    section = dict(zip(GROUPS, parts[1::2], strict=True))
    flags = re.findall(r"^  (?:-h, )?(--[\w-]+)", "".join(parts[1::2]), flags=re.MULTILINE)
    params = [one for one in group.commands[name].params if isinstance(one, click.Option)]
    assert sorted(flags) == sorted(["--help", *(one.opts[0] for one in params)])
    for one in params:
        own = section[GROUP_OF[str(one.name)]]
        assert re.search(rf"^  {one.opts[0]}(?= |$)", own, flags=re.MULTILINE), one.name
    assert "--help" in section["Running"]
