"""The help of commands that fit shows options under headings."""

import re

import click
import pytest
from cli_world import succeed

from bigscreen.cli.commands import group
from bigscreen.cli.options import OTHER, GroupedCommand
from bigscreen.options import train, tuning
from bigscreen.options.option import GROUPS

GROUPED = [name for name, command in group.commands.items() if isinstance(command, GroupedCommand)]


def test_commands_that_fit_have_groups() -> None:
    fitting = {"plan", "fit", "path", "tune", "resample"}
    assert set(GROUPED) == fitting | {"ingest", "predict", "evaluate"}
    assert {own.group for own in train.OPTIONS.values()} == set(GROUPS)
    assert {own.group for own in tuning.OPTIONS.values()} == {"Expert"}


@pytest.mark.parametrize("name", GROUPED)
def test_every_option_stands_once_under_the_heading_of_its_group(name: str) -> None:
    command = group.commands[name]
    assert isinstance(command, GroupedCommand)
    headings = "|".join(command.headings)
    _, *parts = re.split(rf"^({headings}):$", succeed(name, "--help"), flags=re.MULTILINE)
    section = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(section) == [heading for heading in command.headings if heading in section]
    assert OTHER not in section, "no group names these options"
    flags = re.findall(r"^  (?:-h, )?(--[\w-]+)", "".join(parts[1::2]), flags=re.MULTILINE)
    params = [one for one in command.params if isinstance(one, click.Option)]
    assert sorted(flags) == sorted(["--help", *(one.opts[0] for one in params)])
    for one in params:
        own = section[command.heading(str(one.name))]
        assert re.search(rf"^  {one.opts[0]}(?=[ ,]|$)", own, flags=re.MULTILINE), one.name
    assert "--help" in section["Running"]


@pytest.mark.parametrize("name", ["ingest", "fit", "path", "tune", "resample"])
def test_the_first_screen_shows_the_ten_options_used_most(name: str) -> None:
    command = group.commands[name]
    assert isinstance(command, GroupedCommand)
    first_screen = "\n".join(succeed(name, "--help").splitlines()[:24])
    flags = re.findall(r"^  (--[\w-]+)", first_screen, flags=re.MULTILINE)
    named = {one.name: one.opts[0] for one in command.params}
    assert flags == [named[each] for each in command.most_used]
    assert len(flags) == 10
