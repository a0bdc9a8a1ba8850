"""Compare README.md with the output of its command and the files."""
import json
import pathlib
import re

from extras.gpu import memory
from support import cli

HERE = pathlib.Path(__file__).parent
PAGE = (HERE / "README.md").read_text("utf-8")


def test_the_computed_table_is_current(capsys):
    memory.print_table()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows and "\n".join(rows) in PAGE


def test_the_laptops_seconds_are_the_measured_ones():
    found = json.loads((HERE / "results" / "laptop.json").read_text())
    sampling, updates = (f"{min(found[key]):.0f} to {max(found[key]):.0f}"
                         for key in ("seconds_sampling", "seconds_update"))
    text = " ".join(PAGE.split())
    assert f"Sampling took {sampling} seconds per step, and the updates took {updates}." in text
    assert f"peak was {found['peak_gb']:.1f} GB" in text


def test_the_commands_of_the_page_parse():
    commands = re.findall(r"^python grpo_sg.py (.*?[^\\])$", PAGE, re.M | re.S)
    assert len(commands) == 4
    for command in commands:
        cli.parse(command.replace("\\\n", "").split())
