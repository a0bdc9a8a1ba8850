"""Compare the tables of hardware.md with the output of its commands and the files in results/."""
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
def test_computed_tables_are_current(print_table, capsys):
    print_table()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows and "\n".join(rows) in PAGE


def test_the_laptop_row_is_the_measured_one():
    found = json.loads((laptop.RESULTS / "laptop.json").read_text())
    parts = found["seconds_sampling"], found["seconds_update"]
    ranges = [f"{min(part):.0f} to {max(part):.0f}" for part in parts]
    hours = 100 * sum(map(statistics.fmean, parts)) / 3600
    assert (f"| SmolLM2-135M | {found['peak_gb']:.1f} | {ranges[0]} | {ranges[1]} | 100 "
            f"| {hours:.1f} |") in PAGE


def test_the_commands_of_the_page_are_those_of_the_table_and_parse():
    small = f"grpo_sg.py --model HuggingFaceTB/SmolLM2-135M-Instruct {laptop.FLAGS}"
    given = [each.replace("\\ ", "") for each in COMMANDS]
    assert given == [small, *(command for *_, command in seconds.LADDER)]
    for command in given:
        cli.parse(command.split()[1:])


def test_the_readme_lists_every_file():
    rows = re.findall(r"^\| (`.*?) \|", (HERE / "README.md").read_text(), re.M)
    named = set(re.findall(r"`(\w+\.py)`", " ".join(rows)))
    files = {path.name for path in HERE.glob("*.py") if not path.name.startswith("test_")}
    assert named == files - {"__init__.py"}
