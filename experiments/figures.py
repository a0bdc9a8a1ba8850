"""Draw the two figures of the evidence page as SVG. evidence.py calls it and saves them."""
import html
import math

INK, GRAY, BLUE, ORANGE = "#222222", "#8a8a8a", "#2166ac", "#c2500a"
COLORS = {"kk": BLUE, "math": ORANGE}
LEGEND = {"logic puzzles": ("kk", False), "expected to miss": ("kk", True),
          "sums and products": ("math", False)}
LEFT, TOP = 64, 44  # where axes begin, in pixels
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}"
font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#ffffff"/>"""


def write(x, y, words, color=INK, anchor="start"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">'
            f'{html.escape(str(words))}</text>')


def connect(points, color=INK, width=1.0):
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width}"/>'


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


def draw_rates(points, hollow, low=0.28, high=1.45, size=560):
    """Draw equivalent rates over ratios on log axes. points: (task, weight, ratio, rate), ratio and
    rate as (estimate, low, high). What lies outside of the axes is drawn at their ends."""
    def place(x, y):  # in pixels
        x, y = (math.log(min(max(z, low), high) / low) / math.log(high / low) for z in (x, y))
        return LEFT + size * x, TOP + size * (1 - y)

    parts = [connect([place(low, low), place(high, high)], GRAY)]
    for y, (words, (task, empty)) in zip((60, 80, 100), LEGEND.items()):
        parts += [mark(LEFT + 24, y, task, empty), write(LEFT + 36, y + 4, words, COLORS[task])]
    for side, anchor in ((-1, "end"), (1, "start")):  # of the diagonal, where names stand
        named = [p for p in points if (p[0] == "kk" and p[2][0] >= low) == (side == -1)]
        heights = spread([min(TOP + size - 16, place(x[0], y[0])[1]) for _, _, x, y in named])
        for (task, name, x, y), height in zip(named, heights):
            center, end = place(x[0], y[0]), LEFT + size - (height - TOP) + 90 * side
            parts += [connect([(end, height), center], GRAY, 0.5),
                      connect([place(x[0], y[1]), place(x[0], y[2])], COLORS[task]),
                      connect([place(x[1], y[0]), place(x[2], y[0])], COLORS[task]),
                      mark(*center, task, name in hollow),
                      write(end + 4 * side, height + 4, name, COLORS[task], anchor)]
    ticks = {z: place(z, z) for z in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4)}
    return draw(size, size, 100, {z: x for z, (x, _) in ticks.items()},
                {z: y for z, (_, y) in ticks.items()}, "ratio, measured before training",
                "equivalent learning rate, steps 1 to 10", parts)


def draw_curve(grpo, ours, width=440, height=260):
    """Draw accuracy over steps. grpo, ours: {step: accuracy}."""
    def place(step, value):
        return LEFT + width * step / 60, TOP + height * (0.7 - value) / 0.4

    low, high = spread([place(60, curve[60])[1] for curve in (grpo, ours)])
    parts = [connect([place(*point) for point in grpo.items()], ORANGE, 5),
             connect([place(*point) for point in ours.items()], BLUE, 2),
             write(LEFT + width + 8, low + 4, "GRPO", ORANGE),
             write(LEFT + width + 8, high + 4, "GRPO-SG", BLUE)]
    return draw(width, height, 80, {step: place(step, 0)[0] for step in range(0, 61, 10)},
                {z: place(0, z)[1] for z in (0.3, 0.4, 0.5, 0.6, 0.7)}, "steps of training",
                "accuracy (avg@8), equal rates, mean of three tasks", parts)
