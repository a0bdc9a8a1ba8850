"""Check the measured numbers of the pages against the raw files in results/. Trains nothing.

    python -m experiments.numbers            report numbers that differ, and exit with 1
    python -m experiments.numbers --write    write the numbers into the pages

A number is between <!--=NAME--> and <!--/-->, in any Markdown page of the project. summary.py
computes the numbers from the rows, and names them.
"""
import argparse
import pathlib
import re
import sys

from experiments import summary

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
EVIDENCE = HERE / "README.md"
MARK = re.compile(r"(<!--=(.*?)-->)(.*?)(<!--/-->)", re.S)
NOT_MARKED = r"<!--=.*?<!--/-->|```.*?```|`[^`]*`|\]\([^)]*\)"
# Numbers that the evidence page may have only between markers: those with three decimals, and
# percentages, except for the levels of intervals and tests and the power.
MEASURED = r"(?<![\w.,])[-+]?\d{0,3}\.\d{3,}|(?<![\w.])(?!95%|80%|5%)\d+(?:\.\d+)?%"


def to_markdown(value):
    """Return a number or a text as it is, and a list of rows as a table."""
    if not isinstance(value, list):
        return str(value)
    head, *rows = [f"| {' | '.join(row)} |" for row in value]
    rule = f"{'|---' * len(value[0])}|"
    return "\n\n" + "\n".join([head, rule, *rows]) + "\n\n"


def check(page, known):
    """Return (the page with the numbers of the files, [what is wrong])."""
    wrong = []

    def put(match):
        start, name, shown, end = match.groups()
        value = known.get(name)
        if value is None:
            wrong.append(f"there is no number {name!r}")
            return match[0]
        text = to_markdown(value)
        if text != shown:
            wrong.append(f"{name} is {shown.strip()!r}, but the files say {text.strip()!r}")
        return start + text + end
    return MARK.sub(put, page), wrong


def without_source(page):
    """Return the measured numbers outside of markers, code and links."""
    return re.findall(MEASURED, re.sub(NOT_MARKED, "", page, flags=re.S))


def find_pages():
    """Return the paths of the pages with marked numbers."""
    paths = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("support/*/*.md")])
    return [path for path in paths if MARK.search(path.read_text("utf-8"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the numbers")
    write = parser.parse_args().write
    known, pages, marks, wrong = summary.summarize(), find_pages(), 0, []
    for path in pages:
        page = path.read_text("utf-8")
        right, problems = check(page, known)
        marks += len(MARK.findall(page))
        if write:
            path.write_text(right, "utf-8")
            problems = [line for line in problems if line.startswith("there is")]
        if path == EVIDENCE:
            problems += [f"no source: {number}" for number in without_source(page)]
        wrong += [f"{path.relative_to(ROOT)}: {line}" for line in problems]
    if wrong:
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know only ASCII
        print(*wrong, f"{len(wrong)} are wrong", sep="\n")
    else:
        print(f"every marked number is what its file says: {marks} in {len(pages)} pages")
    sys.exit(len(wrong) > 0)


if __name__ == "__main__":
    main()
