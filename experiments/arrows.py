"""Draw figures/angle.svg: three arrows from results/angle.jsonl, which experiments/angle.py writes.

    python -m experiments.arrows                 kk, after 1 and after 60 training steps
    python -m experiments.arrows --task math     to look at; the pages show kk's
"""
import argparse
import math
import pathlib
import statistics

from experiments import analysis, angle

FIGURE = pathlib.Path(__file__).parent / "figures" / "angle.svg"
STEPS = 1, 60
LENGTH = 118  # of GRPO's arrow, in pixels; the figure is 400 wide
STYLE = """
  text { font: 13px sans-serif; fill: #333; }
  .title { font-weight: bold; }
  .arrow { stroke-width: 3; fill: none; }
  .GRPO { stroke: #777; } .weighted { stroke: #2166ac; } .other { stroke: #d95f02; }
  text.weighted { fill: #2166ac; stroke: none; } text.other { fill: #b34d00; stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd; }
    .GRPO { stroke: #aaa; } .weighted { stroke: #6db3f2; } .other { stroke: #ff9e4a; }
    text.weighted { fill: #6db3f2; } text.other { fill: #ff9e4a; }
  }"""


def mean_angle(rows, task, steps, arm):
    """Return (degrees, length relative to GRPO's arrow), means over the recorded seeds."""
    here = angle.cells(rows)["displacement", task, 0, steps, arm]
    degrees = statistics.fmean(angle.degrees(row["cos"]) for row in here)
    return degrees, statistics.fmean(row["norm ratio"] for row in here)


def arrow(x, y, degrees, length, name):
    """Return an arrow from (x, y), with its tip."""
    lines = []
    tip_x = x + length * math.cos(math.radians(degrees))
    tip_y = y - length * math.sin(math.radians(degrees))
    for turn in (150, -150):
        at = math.radians(degrees + turn)
        start = f"{tip_x + 11 * math.cos(at):.1f} {tip_y - 11 * math.sin(at):.1f}"
        lines.append(f"M {start} L {tip_x:.1f} {tip_y:.1f}")
    path = f"M {x} {y} L {tip_x:.1f} {tip_y:.1f} {' '.join(lines)}"
    return f'  <path class="arrow {name}" d="{path}"/>', tip_x, tip_y


def label(x, y, name, text):
    return f'  <text class="{name}" x="{x:.1f}" y="{y:.1f}">{text}</text>'


def panel(rows, task, steps, x, y):
    """Return the three arrows after this number of steps, as lines of SVG."""
    turned, long = mean_angle(rows, task, steps, "GRPO-SG")
    other, long_other = mean_angle(rows, task, steps, "another draw")
    noun = "step" if steps == 1 else "steps"
    drawn = [f'  <text class="title" x="{x}" y="18">after {steps} {noun}</text>']
    line, _, _ = arrow(x, y, 0, LENGTH, "GRPO")
    drawn += [line, f'  <text x="{x + 40}" y="{y + 20}">GRPO</text>']
    line, tip_x, tip_y = arrow(x, y, other, LENGTH * long_other, "other")
    drawn += [line, label(x + 8, tip_y - 9, "other", f"GRPO, other problems {other:.0f}°")]
    line, tip_x, tip_y = arrow(x, y, turned, LENGTH * long, "weighted")
    left, below = (x + 84, tip_y - 9) if turned < 25 else (min(tip_x - 4, x + 94), tip_y + 21)
    drawn += [line, label(left, below, "weighted", f"GRPO-SG {turned:.0f}°")]
    return drawn


def draw(rows, task):
    """Return the figure as SVG."""
    words = []
    for steps in STEPS:
        turned, _ = mean_angle(rows, task, steps, "GRPO-SG")
        other, _ = mean_angle(rows, task, steps, "another draw")
        words.append(f"Training steps: {steps}. Angle between the moves of the parameters by "
                     f"GRPO and by GRPO-SG: {turned:.0f} degrees; by GRPO on other problems: "
                     f"{other:.0f}.")
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200" width="400" '
             'height="200" role="img">', f"  <title>{' '.join(words)}</title>",
             f"  <style>{STYLE}\n  </style>"]
    for i, steps in enumerate(STEPS):
        lines += panel(rows, task, steps, 12 + 200 * i, 172)
    return "\n".join([*lines, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--task", choices=angle.TASKS, default="kk")
    parser.add_argument("--results", type=pathlib.Path, default=analysis.RESULTS / "angle.jsonl")
    parser.add_argument("--out", type=pathlib.Path, default=FIGURE)
    args = parser.parse_args()
    args.out.write_text(draw(analysis.read_rows(args.results), args.task))


if __name__ == "__main__":
    main()
