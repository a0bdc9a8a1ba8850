"""Draw the figures of the evidence as SVG. evidence.py calls it and saves them."""
import html
import math

INK, GRAY, BLUE, ORANGE = "#222222", "#8a8a8a", "#2166ac", "#c2500a"
COLORS = {"kk": BLUE, "math": ORANGE}
LEFT, TOP = 64, 44  # where axes begin, in pixels
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}"
font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#ffffff"/>"""


def write(x, y, words, color=INK, anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{html.escape(str(words))}</text>')


def connect(points, color=INK, width=1.0, dashes="none"):
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width}" '
            f'stroke-dasharray="{dashes}"/>')


def mark(x, y, task, hollow=False):  # a circle for kk, and a square for math
    return (f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" rx="{4 * (task == "kk")}" '
            f'fill="{"#ffffff" if hollow else COLORS[task]}" stroke="{COLORS[task]}"/>')


def draw(width, height, right, ticks_x, ticks_y, title_x, title_y, parts):
    """Return an SVG with axes, each {number: its place in pixels}, and other parts."""
    bottom = TOP + height
    axes = [connect([(LEFT, TOP), (LEFT, bottom), (LEFT + width, bottom)]),
            write(LEFT + width / 2, bottom + 44, title_x, anchor="middle"),
            write(LEFT - 44, TOP - 18, title_y)]
    for z, x in ticks_x.items():
        axes += [connect([(x, bottom), (x, bottom + 5)]), write(x, bottom + 18, z, anchor="middle")]
    for z, y in ticks_y.items():
        axes += [connect([(LEFT - 5, y), (LEFT, y)]), write(LEFT - 9, y + 4, z, anchor="end")]
    head = HEAD.format(LEFT + width + right, TOP + height + 60)
    return "\n".join([head, *axes, *parts, "</svg>\n"])


def spread(heights, gap=16):
    """Move heights apart until no two are closer than a gap, and return them."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for i, j in 500 * [*zip(order, order[1:])]:
        lack = max(0, gap - (heights[j] - heights[i])) / 2
        heights[i], heights[j] = heights[i] - lack, heights[j] + lack
    return heights


def draw_rates(points, low=0.28, high=1.5, size=560):
    """Draw equivalent rates over progress ratios on log axes. points: (task, weight, progress
    ratio, rate, missed), ratio and rate as (estimate, low, high), all inside of the axes."""
    def place(x, y):  # in pixels
        x, y = (math.log(z / low) / math.log(high / low) for z in (x, y))
        return LEFT + size * x, TOP + size * (1 - y)

    parts = [connect([place(low, low), place(high, high)], GRAY)]
    legend = ("logic puzzles", "kk", False), ("sums and products", "math", False), (
        "hollow: missed, the interval excludes the progress ratio", "kk", True)
    for y, (words, task, hollow) in zip((60, 80, 100), legend):
        parts += [mark(LEFT + 24, y, task, hollow), write(LEFT + 36, y + 4, words, COLORS[task])]
    for task, side, anchor in (("kk", -1, "end"), ("math", 1, "start")):  # of the diagonal
        named = [point for point in points if point[0] == task]
        heights = spread([min(TOP + size - 16, place(x[0], y[0])[1]) for _, _, x, y, _ in named])
        for (_, name, x, y, missed), height in zip(named, heights):
            center, end = place(x[0], y[0]), LEFT + size - (height - TOP) + 100 * side
            parts += [connect([(end, height), center], GRAY, 0.5),
                      connect([place(x[0], y[1]), place(x[0], y[2])], COLORS[task]),
                      connect([place(x[1], y[0]), place(x[2], y[0])], COLORS[task]),
                      mark(*center, task, missed),
                      write(end + 4 * side, height + 4, name, COLORS[task], anchor)]
    ticks = {z: place(z, z) for z in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4)}
    return draw(size, size, 110, {z: x for z, (x, _) in ticks.items()},
                {z: y for z, (_, y) in ticks.items()}, "progress ratio, measured before training",
                "equivalent learning rate, steps 1 to 10", parts)


def draw_ends(registered, equal, left=350, width=480, low=-0.06, high=0.24):
    """Draw differences with their intervals, a line each. registered, equal: (label, pairs,
    estimate, low, high)."""
    def place(value):
        return left + width * (value - low) / (high - low)

    bottom = 54 + 24 * (len(registered) + len(equal) + 2)
    parts = [connect([(place(0), 34), (place(0), bottom)], GRAY),
             write(place(0) - 8, 24, "GRPO is better", GRAY, "end"),
             write(place(0) + 8, 24, "GRPO-SG is better", GRAY)]
    y = 54
    for title, lines in (("Eight registered comparisons of where a run ends", registered),
                         ("Not registered: equal rates", equal)):
        parts.append(write(12, y, title, weight="bold"))
        for label, pairs, estimate, start, end in lines:
            y += 24
            color = BLUE if start > 0 else ORANGE if end < 0 else INK
            parts += [write(22, y, f"{label} ({pairs})", color),
                      connect([(place(start), y - 4), (place(end), y - 4)], color, 2),
                      f'<circle cx="{place(estimate):.1f}" cy="{y - 4}" r="4" fill="{color}"/>']
        y += 32
    parts.append(connect([(left, bottom), (left + width, bottom)]))
    for value in (-0.05, 0, 0.05, 0.1, 0.15, 0.2):
        x = place(value)
        words = f"{value:+.2f}" if value else "0"
        parts += [connect([(x, bottom), (x, bottom + 5)]),
                  write(x, bottom + 18, words, anchor="middle")]
    title = "difference, GRPO-SG minus GRPO, with its 95% interval"
    parts.append(write(left + width / 2, bottom + 40, title, anchor="middle"))
    return "\n".join([HEAD.format(left + width + 20, bottom + 56), *parts, "</svg>\n"])


def draw_curves(curves, width=440, height=260):
    """Draw accuracy over steps. curves: (label, {step: accuracy}); GRPO's at another rate than the
    others' is dashed, and comes first."""
    def place(step, value):
        return LEFT + width * step / 60, TOP + height * (0.7 - value) / 0.5

    parts, heights = [], spread([place(60, curve[60])[1] for _, curve in curves])
    for i, ((label, curve), height_) in enumerate(zip(curves, heights)):
        color = BLUE if "SG" in label else ORANGE
        parts += [connect([place(*point) for point in curve.items()], color, 2.5,
                          "7 4" if i == 0 else "none"),
                  write(LEFT + width + 8, height_ + 4, f"{label}: {curve[60]:.3f}", color)]
    return draw(width, height, 170, {step: place(step, 0)[0] for step in range(0, 61, 10)},
                {z: place(0, z)[1] for z in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)}, "steps of training",
                "phone book: accuracy (avg@8), mean of 40 seeds", parts)
