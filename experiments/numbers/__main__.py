"""Every number of the pages that was measured, traced to the raw file that it comes from.

    python -m experiments.numbers            prints them all; fails if one differs, or has no source
    python -m experiments.numbers --write    puts into the pages what the files say

sources.py says what stands where. Where a file is not there yet, the page keeps what it has. A number of the
CHECKED pages that no source explains, and that is not in NOT_MEASURED, has no source: decimals, powers of ten,
and integers from 100 on are looked at, where they stand neither in code nor in an address.
"""
import argparse
import pathlib
import re
import sys

from experiments.numbers import sources

ROOT = pathlib.Path(__file__).parents[2]
CHECKED = sources.README, sources.EVIDENCE  # the lesson has examples, whose numbers other tests compute
PAGES = *CHECKED, sources.VERIFY, sources.LESSON, sources.DECISIONS
NUMBER = r"(?<![\w.,-])[-+]?(?:\d*\.\d+(?:e-?\d+)?|\d+e-?\d+|\d{1,3}(?:,\d{3})+|\d{3,})(?![\w.]*\d)"
NOT_CODE = r"```.*?```|`[^`]*`|\$[^$\n]+\$|\]\([^)]*\)|arXiv\s+[\d.]+|<[a-z/!][^>\n]*>"
VALUE = r"([-+]?(?:\d+(?:,\d{3})+|\d*\.?\d+)(?:e-?\d+)?(?: to [-+]?\d*\.?\d+)?|-)"  # -: nothing measured yet
WORDS = r"([^|*]+?)"
# Settings, versions, what is computed by a formula or is the paper's own: by page, as they are written.
NOT_MEASURED = {
    sources.README: "2.9 0.3 0.12 0.33 1.4 1.41 0.25 0.122 0.2 0.327 1.22 0.8 1.2 1.24 -0.5 2,048 151,936 200 220 100 2025",
    sources.EVIDENCE: "200,000 400 500 200 100 101 102 104 150 256 5e-5 1e-4 2e-4 4e-4 1.4 0.33 0.12 0.25 0.5 2,048 151,936 "
                      "0.39 0.63 13.84 27.29 28.89 43.33 2024"}


def find(page, text):
    """The match of a text in a page, its values as groups; None if there is none."""
    start, text = text if isinstance(text, tuple) else ("", text)
    at = page.find(start)
    pattern = re.escape(text).replace(r"\{\}", VALUE).replace(r"\{words\}", WORDS)
    pattern = pattern.replace(r"\{any\}", r"[^|]*?").replace(r"\*\*", r"(?:\*\*)?")
    pattern = re.sub(r"(?:\\ )+", r"\\s+", pattern)
    return re.compile(pattern).search(page, at) if at >= 0 else None


def put(page, match, values):
    """The page with these values in the place of those that were found."""
    for i in range(len(values), 0, -1):
        page = page[:match.start(i)] + values[i - 1] + page[match.end(i):]
    return page


def all_sources():
    """The sources of all questions; of a question without a file (function, file)."""
    for question in sources.SOURCES:
        try:
            yield from question()
        except FileNotFoundError as error:
            print(f"no file yet: {question.__name__}, {error.filename}")


def unexplained(page, spans, known):
    """[(line, number)] of the numbers outside of the spans that are not known."""
    kept = list(page)
    for begin, end in [*spans, *(match.span() for match in re.finditer(NOT_CODE, page, re.S))]:
        kept[begin:end] = [c if c == "\n" else " " for c in page[begin:end]]
    kept = "".join(kept)
    found = []
    for match in re.finditer(NUMBER, kept):
        if match[0] not in known.split():
            found.append((kept[:match.start()].count("\n") + 1, match[0]))
    return found


def check(pages, write=False):
    """How many sources and numbers of the pages are wrong; prints all. pages: name -> text; with write it is changed
    to what the files say."""
    spans = {name: [] for name in pages}
    wrong = 0
    for name, text, file, key, values in all_sources():
        match = find(pages[name], text)
        stands = [" ".join(value.split()) for value in match.groups()] if match else None
        said = "not on the page" if not match else "ok" if stands == values else f"on the page: {stands}"
        print(f"{said:<4} {name} <- {file}, {key}: {', '.join(values)}")
        if match and write and stands != values:
            pages[name] = put(pages[name], match, values)
        wrong += stands != values and not (match and write)
        spans[name].append(text)
    for name in CHECKED:
        matches = [match for text in spans[name] if (match := find(pages[name], text))]
        for line, number in unexplained(pages[name], [match.span() for match in matches], NOT_MEASURED[name]):
            print(f"no source: {name}, line {line}: {number}")
            wrong += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put into the pages what the files say")
    write = parser.parse_args().write
    pages = {name: (ROOT / name).read_text() for name in PAGES}
    wrong = check(pages, write)
    for name, page in pages.items() if write else ():
        (ROOT / name).write_text(page)
    print(f"{wrong} numbers or rows are wrong" if wrong else "every number has its source")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
