"""The measurement of how many training problems are enough runs, and the page has its means."""
import pathlib
import re
from statistics import fmean

import tasks
from lesson import how_many
from support import cli, tiny

LESSON = pathlib.Path(how_many.__file__).parent


def test_a_short_run(monkeypatch):
    monkeypatch.setattr(tiny, "warm_up", lambda *given: None)
    cli.add_extras()
    monkeypatch.setitem(tasks.TASKS, "backwards", how_many.make_backwards)
    scores = how_many.train(20, 0, steps=1, prompts=2, group_size=2, max_new_tokens=6)
    assert len(scores) == 3 and all(0 <= score <= 1 for score in scores)


def test_the_page_has_the_means():
    text = (LESSON / "results" / "how_many.txt").read_text(encoding="utf-8")
    page = (LESSON / "README.md").read_text(encoding="utf-8")
    for count in how_many.COUNTS:
        found = re.findall(rf"^ *{count} problems.* accuracy (\S+), test avg@4 (\S+) -> (\S+)$",
                           text, re.M)
        assert len(found) == len(how_many.SEEDS)
        training, before, after = (fmean(map(float, column)) for column in zip(*found))
        assert f"| {count} | {training:.2f} | {before:.2f} → {after:.2f} |" in page
