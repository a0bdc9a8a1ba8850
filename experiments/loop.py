"""Draw the picture of the loop in the README: python -m experiments.loop writes figures/loop.svg.

Plain SVG, with colors that follow the reader's light or dark scheme, readable at 400 pixels.
"""
import pathlib

OUT = pathlib.Path(__file__).parent / "figures" / "loop.svg"
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
  .name { font-weight: 600; font-size: 15px }
  .small { font-size: 12px; fill: #59636e }
  .box { fill: #f6f8fa; stroke: #59636e }
  .arrow { fill: none; stroke: #0969da; stroke-width: 2; marker-end: url(#head) }
  .head { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #b1bac4 }
    .box { fill: #151b23; stroke: #9198a1 }
    .arrow { stroke: #4493f8 }
    .head { fill: #4493f8 }
  }
"""
# (x, y of the middle, the name, two lines)
BOXES = ((100, 55, "1. sample", "G completions of each", "problem, by the policy"),
         (300, 55, "2. verify", "a verifier gives each", "a reward: 3, -0.5, 3, -3"),
         (300, 195, "3. compare", "each with its group:", "A = 0.8, -0.4, 0.8, -1.2"),
         (100, 195, "4. learn", "more of A &gt; 0, less of", "A &lt; 0, token by token: w A"))
ARROWS = ("M188 55H208", "M300 95V151", "M212 195H192", "M100 155V99")


def draw():
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 250" role="img">',
             "<title>The loop: sample, verify, compare, learn, and again</title>",
             f"<style>{STYLE}</style>",
             '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="5" refY="3" '
             'orient="auto">',
             '<path class="head" d="M0 0L6 3L0 6Z"/></marker></defs>']
    for x, y, name, *texts in BOXES:
        lines.append(f'<rect class="box" x="{x - 88}" y="{y - 38}" width="176" height="76" '
                     'rx="8"/>')
        lines.append(f'<text class="name" x="{x}" y="{y - 15}">{name}</text>')
        for i, text in enumerate(texts):
            lines.append(f'<text class="small" x="{x}" y="{y + 7 + 18 * i}">{text}</text>')
    for path in ARROWS:
        lines.append(f'<path class="arrow" d="{path}"/>')
    lines.append('<text class="small" x="200" y="129">and again, with the new policy</text></svg>')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    OUT.write_text(draw())
    print(OUT)
