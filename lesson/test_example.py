"""The example's numbers are what its columns say."""
import math
import pathlib
import re
import runpy
import sys

import pytest

from lesson import example

TINY = f"{example.ROOT}/support/pretrained/kk"
N = 44  # words of its vocabulary


def test_the_columns(capsys):
    """The same words as recorded, and the same numbers up to another processor's rounding."""
    example.main(TINY)
    number = r"[+-]?\d+(?:\.\d+)?"
    recorded = (pathlib.Path(example.__file__).parent / "results" / "example.txt").read_text()
    recorded = recorded.split("\n", 1)[1]
    printed = capsys.readouterr().out
    assert re.sub(number, "#", printed) == re.sub(number, "#", recorded)
    values = [list(map(float, re.findall(number, text))) for text in (printed, recorded)]
    assert values[0] == pytest.approx(values[1], abs=0.03)
    rows = re.findall(r"^\| \d.*$", printed, re.M)
    for row in rows:
        pi, w, A, wA, size, _ = map(float, row.strip("| ").split(" | ")[2:])
        assert abs(w * A - wA) < 0.02
        least = abs(wA) * math.sqrt(N / (N - 1)) * (1 - pi)
        most = abs(wA) * math.sqrt(2) * (1 - pi)
        assert least - 0.02 < size < most + 0.02
    assert len(rows) == 10


def test_groups_of_equal_rewards_have_no_example(monkeypatch):
    monkeypatch.setattr(example, "sample", lambda *args, **settings: [[0]] * example.G)
    with pytest.raises(SystemExit, match="equal rewards"):
        example.main(TINY)


def test_the_page_says_what_the_command_printed():
    lesson = pathlib.Path(example.__file__).parent
    head, printed = (lesson / "results" / "example.txt").read_text().split("\n", 1)
    assert head.startswith("# python -m lesson.example, commit ")
    page = (lesson / "README.md").read_text()
    section = page.split("## One example")[1].split("\n## ")[0]
    for number in re.findall(r"-?\d\.\d{2,}", section.split("Answers")[1]):
        assert number in printed, number
    rows = {tuple(row.split(" | ")[:2]): row for row in re.findall(r"^\| (\d.*)$", printed, re.M)}
    _, _, pi, *_, after = rows["3", "`KNN.`"].strip(" |").split(" | ")
    assert float(after) > float(pi)


@pytest.mark.parametrize("folder", ["runs/nowhere", "runs/NAME", "a b"])
def test_a_folder_without_a_model_is_reported_in_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "NAME").mkdir(parents=True)
    (tmp_path / "runs" / "NAME" / "settings.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["example.py", *folder.split()])
    with pytest.raises(SystemExit, match="give the folder of a model, such as runs/"):
        runpy.run_path(example.__file__, run_name="__main__")
