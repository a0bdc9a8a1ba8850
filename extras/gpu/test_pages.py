"""The tables of hardware.md are what its commands compute, and what results/ has."""
import json
import pathlib
import re
import statistics

import pytest

from extras.gpu import laptop, memory, seconds
from support import cli

HERE = pathlib.Path(__file__).parent
PAGE = (HERE / "hardware.md").read_text()
COMMANDS = [" ".join(each.split()) for each in
            re.findall(r"^python (grpo_sg.py .*?[^\\])$", PAGE, re.M | re.S)]


@pytest.mark.parametrize("print_table", [memory.print_table, seconds.print_ladder])
def test_a_computed_table_is_what_is_computed(print_table, capsys):
    print_table()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows and "\n".join(rows) in PAGE


def test_the_laptops_row_is_what_was_measured():
    found = json.loads((laptop.RESULTS / "laptop.json").read_text())
    parts = found["seconds_sampling"], found["seconds_update"]
    ranges = [f"{min(part):.0f} to {max(part):.0f}" for part in parts]
    hours = 100 * sum(map(statistics.fmean, parts)) / 3600
    assert (f"| SmolLM2-135M | {found['peak_gb']:.1f} | {ranges[0]} | {ranges[1]} | 100 "
            f"| {hours:.1f} |") in PAGE


def test_each_command_of_the_page_is_one_of_the_table_and_can_be_parsed():
    small = f"grpo_sg.py --model HuggingFaceTB/SmolLM2-135M-Instruct {laptop.FLAGS}"
    given = [each.replace("\\ ", "") for each in COMMANDS]
    assert given == [small, *(command for *_, command in seconds.LADDER)]
    for command in given:
        cli.parse(command.split()[1:])


def test_every_file_of_the_folder_has_its_row():
    rows = re.findall(r"^\| (`.*?) \|", (HERE / "README.md").read_text(), re.M)
    named = set(re.findall(r"`(\w+\.py)`", " ".join(rows)))
    files = {path.name for path in HERE.glob("*.py") if not path.name.startswith("test_")}
    assert named == files - {"__init__.py"}
