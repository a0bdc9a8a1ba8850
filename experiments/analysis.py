"""Read recorded rows; compute 95% confidence intervals and minimum detectable effects."""
import functools
import json
import math
import pathlib
import statistics
import subprocess

RESULTS = pathlib.Path(__file__).parent / "results"


# ---- Rows ----

def read_rows(path):
    """Read a file of JSON lines; return [] if there is none yet. Ignores a half-written last
    line."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines(keepends=True)
            if line.endswith("\n")]


def append_rows(path, rows):
    """Append JSON lines, in the place of a half-written last line."""
    with open(path, "ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def name_commit():
    """Return the commit of the program, with "changed" if a script differs from it."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=RESULTS, capture_output=True, text=True)
        return done.stdout.strip()
    changed = git("status", "--porcelain", "--", ":/*.py")
    return git("rev-parse", "--short", "HEAD") + (" changed" if changed else "")


def read(experiment):
    return read_rows(RESULTS / f"{experiment}.jsonl")


def read_json(name):
    return json.loads((RESULTS / name).read_text("utf-8"))


# ---- Intervals ----

@functools.cache
def t_quantile(p, degrees, steps=20_000):
    """Return Student's t quantile, for p of at least 0.5.

    With x = sqrt(n) tan(a), the density over the angle a is proportional to cos(a)^(n-1)."""
    width = math.pi / 2 / steps
    heights = [math.cos((i + 0.5) * width) ** (degrees - 1) for i in range(steps)]
    left = (2 * p - 1) * sum(heights)
    i = 0
    while left > heights[i]:
        left -= heights[i]
        i += 1
    return math.sqrt(degrees) * math.tan((i + left / heights[i]) * width)


def standard_error(values):
    return statistics.stdev(values) / math.sqrt(len(values))


def interval(values):
    """Return (mean, low, high): the 95% confidence interval by Student's t."""
    average = statistics.fmean(values)
    half = t_quantile(0.975, len(values) - 1) * standard_error(values)
    return average, average - half, average + half


@functools.cache
def errors_to_detect(degrees, power=0.8):
    """Return the minimum detectable effect in standard errors, as a sample of degrees + 1 values
    estimates them. Of the experiments of this size, `power` have a 95% interval that excludes 0
    if the true effect is this many standard errors of an earlier one of the same size."""
    t = t_quantile(0.975, degrees)
    # A sample's standard deviation, where the true one is 1: chi / sqrt(degrees).
    spread = 5 / math.sqrt(2 * degrees)
    deviations = [max(0.0, 1 - spread) + spread * (i + 0.5) / 50 for i in range(100)]
    chances = [x ** (degrees - 1) * math.exp(-degrees * (x * x - 1) / 2) for x in deviations]
    low, high = t, 20 * t
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        detected = sum(p * q * normal_cdf(middle * x - t * y)
                       for x, p in zip(deviations, chances) for y, q in zip(deviations, chances))
        low, high = (middle, high) if detected < power * sum(chances) ** 2 else (low, middle)
    return low


def normal_cdf(z):
    return math.erfc(-z / math.sqrt(2)) / 2


def detectable(values):
    """Return the minimum detectable effect: 80% of such experiments would detect a true
    difference of this size, with an interval that excludes 0."""
    return errors_to_detect(len(values) - 1) * standard_error(values)
