"""The tables of README, of the lesson and of the ledger are those of the rows."""
from statistics import fmean as mean

import pytest

from experiments.compare import RESULTS, ROOT, interval, read_rows

MODELS = {"A": "60% of its texts skip the last speaker", "B": "as many steps, no text skips", "C": "fewer steps, no text skips"}
OUTCOMES = [*((model, "avg@32, reasons") for model in "CAB"), ("C", "pass@16, reasons"), ("C", "share without reasons")]


def select(name, **columns):
    rows = read_rows(RESULTS / f"{name}.jsonl")
    return [row for row in rows if all(row.get(key) == value for key, value in columns.items())]


def list_answers():
    """Yield the lines of README's first table: greedy answers of the default run."""
    rows = select("default", arm="kk, words")
    for words, before, after in (("are right", "greedy_before", "greedy"),
                                 ("are right, and the steps before them prove it", "reasons_before", "reasons")):
        yield f"| {words} | {mean(row[before] for row in rows):.0%} | **{mean(row[after] for row in rows):.0%}** |"


def list_gains():
    """Yield the lines of README's second table: avg@4 before and after, and its range over seeds."""
    runs = {"tiny, puzzles": [(row["before"], row["avg@4"]) for row in select("default", arm="kk, words")],
            "tiny, sums and products (`--task math`)": [
                (row["before"], row["avg@4"]) for row in select("default", arm="math, ready")],
            "SmolLM2-135M, sums": [row["avg@4"] for row in select("recipe2") if "avg@4" in row]}
    for name, pairs in runs.items():
        before, after = zip(*pairs)
        yield (f"| {name} | {mean(before):.3f} → {mean(after):.3f} | {min(after):.3f} to {max(after):.3f}, of "
               f"{len(pairs)} |")


def list_added():
    """Yield the lines of the lesson's table of what RL added, means over seeds."""
    for model, made in MODELS.items():
        right, proved, without = (
            [mean(row[when][key] for row in select("reasons", model=model)) for when in ("before", "after")]
            for key in ("avg@32, answers", "avg@32, reasons", "share without reasons"))
        yield (f"| {model}: {made} | {right[0]:.3f} → {right[1]:.3f} | {proved[0]:.3f} → {proved[1]:.3f} | "
               f"{without[0]:.0%} → {without[1]:.0%} |")


def list_outcomes():
    """Yield the numbers of the rule `reasons`, as the ledger has them."""
    for model, key in OUTCOMES:
        found = interval([row["after"][key] - row["before"][key] for row in select("reasons", model=model)])
        yield "| {:+.3f} [{:+.3f}, {:+.3f}] | {} |".format(*found, len(select("reasons", model=model)))


@pytest.mark.parametrize("name, lines", [("README.md", list_answers), ("README.md", list_gains),
                                         ("lesson/README.md", list_added), ("experiments/ledger.md", list_outcomes)])
def test_a_page_has_the_numbers_of_the_rows(name, lines):
    page = ROOT / name
    text = page.read_text("utf-8") if page.exists() else pytest.skip("this folder was deleted")
    for line in lines():
        assert line in text
