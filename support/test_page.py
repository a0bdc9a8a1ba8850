"""Test page.py: the page matches the files, and model-written text never runs."""
import html.parser
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

from grpo_sg import Config, group_advantages, token_weights, weigh
from support import page

HOSTILE = ["<script>document.title = 1</script>", "</script></style>", '"><img src=x onerror=a()>', "\0",
           "\u2028", "\ud800", "\u202egnp", "\x1b[2J", "{0}{style}%s", "&lt;b&gt;", "javascript:a()", ""]
ADVANTAGES = group_advantages(torch.tensor([[3.0, -0.5, -3.0]]))[0]
in_a_browser = pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not installed")


class Page(html.parser.HTMLParser):
    """Parse a page: its tags, which must be closed in order, their attributes, and its boxes."""
    def __init__(self, *folders):
        super().__init__()
        self.text = page.write(*folders).read_text("utf-8")
        self.boxes = [html.unescape(box) for box in re.findall("<b [^>]*>(.*?)</b>", self.text, re.S)]
        self.tags, self.open = [], []
        self.feed(self.text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open += [tag] * (tag not in "meta input br hr option path tr td th li caption".split())

    def handle_endtag(self, tag):
        assert tag == "path" or self.open.pop() == tag

    def values(self, name):
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def make_run(folder, words=("<think>", "KNK", "</answer>"), evaluations=(0, 2, 4), **settings):
    """Write the files of a run, as grpo_sg.py does. The last token is a tool's."""
    folder.mkdir()
    logps = torch.linspace(-6, 0, len(words))
    train = {"reward": settings.get("seed", 1), "seconds": 2.0, "weight_mean": 1.39, "low_prob_frac": 0.01}
    rows = {"metrics": [{"step": step, **train} for step in range(1, 5)], "samples": [], "tokens": []}
    for step in evaluations:
        labels = {"step": step, "split": "valid" if step == 2 else "test"}
        rows["metrics"].append({**labels, "eval/accuracy": 0.25 + step / 8, "eval/accuracy_se": 0.03})
        verdict = {"reward": 3.0, "correct": step > 0, "formatted": True, "truncated": False}
        rows["samples"] += [{**labels, "question": word, "answer": word, "completion": word, **verdict}
                            for word in words]
        rows["tokens"].append({"step": step, "question": words[0], "answer": {"Ada": words}, "completions": [
            {"tokens": words, "own": [1] * (len(words) - 1) + [0], "pi": logps.exp().tolist(),
             "w": token_weights(logps).tolist(), "advantage": A, **verdict} for A in ADVANTAGES.tolist()]})
    (folder / "config.json").write_text(json.dumps({"task": "kk", "shaping": "sg", "steps": 4, **settings}))
    for name, each in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
    return folder


def test_a_page_matches_the_files(tmp_path):
    seen = Page(make_run(tmp_path / "run"))
    assert seen.boxes == ["<think>", "KNK", "</answer>"] * 9 and seen.values("class").count("tool") == 9
    pi, w, A = (torch.tensor([float(x) for x in seen.values(f"data-{name}")]) for name in "pwa")
    torch.testing.assert_close(w, token_weights(pi.log()))
    torch.testing.assert_close(A, ADVANTAGES.repeat(3))
    assert seen.values("data-points")[0] == "[[1, 1.0], [2, 1.0], [3, 1.0], [4, 1.0]]"
    for words in ("4 of 4 steps, 8 s", "0.250 ± 0.030 → 0.750 ± 0.030", "wrong → correct: 3",
                  "training 1.0%", 'title="test" data-points="[[0, 0.25], [4, 0.75]]">test 0.75<',
                  f"{page.HEAD}<tr><td>1, 1<td><td>&lt;think&gt;<td>KNK &lt;/answer&gt;<td>0.00248<td>1"):
        assert words in seen.text


@pytest.mark.parametrize("low, high, expected", [
    (0.6, 0.9, [0.6, 0.7, 0.8, 0.9]), (0.525, 0.915, [0.5, 0.6, 0.7, 0.8, 0.9, 1]), (0, 60, [0, 20, 40, 60]),
    (0, 1, [0, 0.5, 1]), (-3, 2.6, [-4, -2, 0, 2, 4]), (2.1e-5, 6e-5, [2e-5, 3e-5, 4e-5, 5e-5, 6e-5]),
    (0, 0, [0, 0.5]), (7, 7, [6, 8])])
def test_an_axis_is_as_long_as_the_data_and_has_round_numbers(low, high, expected):
    assert page.ticks(low, high) == pytest.approx(expected)


def test_controls_that_need_javascript_are_hidden_without_it(tmp_path):
    controls = "<(?:input|select|button|output)"
    text = Page(make_run(tmp_path / "run")).text
    assert len(re.findall(controls, text)) == 19
    assert not re.search(controls, re.sub(r"<(span|div) class=.live. hidden>.*?</\1>(?=</p>|<section)", "", text,
                                          flags=re.S))


def test_model_written_text_runs_nothing_loads_nothing_and_is_cut(tmp_path):
    seen = Page(make_run(tmp_path / "<b>", [*HOSTILE * 60, "x" * 1_000_000], range(0, 12, 2), model="<b>",
                         shaping=HOSTILE[2]))
    assert [tag for tag, _ in seen.tags if tag in ("script", "img", "a", "link", "iframe")] == ["script"]
    assert not {key for _, each in seen.tags for key in each if re.match("on|src|href|style", key)}
    assert not re.search("[\0\x1b\u2028\u202e\ud800]|url[(]|https?:|@import", seen.text)
    assert "default-src 'none';\nstyle-src 'sha256-" in seen.values("content")[1]
    assert seen.values("data-step") == ["0", "10"] and len(seen.boxes) == 2 * 3 * 600
    assert len(seen.text) < 3_000_000 and "181 of 721, greedy" in seen.text


def test_a_killed_run_has_a_page(tmp_path):
    for left in (None, 0, 1, 50, 1000, 1500):
        for file in make_run(tmp_path / f"{left}").glob("*.jsonl"):
            file.unlink() if left is None else file.write_bytes(file.read_bytes()[:left])
        assert "<h2>" in Page(tmp_path / f"{left}").text


def test_the_page_of_several_runs_has_means_over_seeds(tmp_path):
    seen = Page(*(make_run(tmp_path / f"{seed}", seed=seed, tau=seed < 3, resume=seed == 2) for seed in (1, 2, 3)))
    assert seen.values("title")[0] == "1, 2" and seen.values("data-points")[0].startswith("[[1, 1.5], [2,")
    assert (tmp_path / "report.html").read_text("utf-8") == seen.text


def test_folders_that_are_not_runs_are_named_and_left_out(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "none").mkdir()
    command = [sys.executable, "-m", "support.page"]
    done = subprocess.run([*command, tmp_path / "none", run], capture_output=True, text=True)
    assert done.stdout.strip() == f"{run}/report.html" and "none is not a run" in done.stderr
    assert subprocess.run([*command, tmp_path / "none"], capture_output=True).returncode == 1


def test_nan_in_the_logs_does_not_break_the_page(tmp_path):
    run = make_run(tmp_path / "run")
    for name, key in ("tokens", r'("pi": \[)[^,]+'), ("metrics", '("reward": )[^,]+'):
        path = run / f"{name}.jsonl"
        path.write_text(re.sub(key, r"\1NaN", path.read_text(), count=1))
    seen = Page(run)
    assert "nan" in seen.values("data-p") and "nan" not in " ".join(seen.values("d"))
    assert seen.values("data-points")[0].startswith("[[2, ")


def browse(path, script=""):
    """Open a page in a browser, run a script that the page's own rules would forbid, and return the DOM."""
    if script:
        free = path.read_text("utf-8").replace("Content-Security-Policy", "")
        path = path.with_name("free.html")
        path.write_text(f"{free}<script>{script}</script>", "utf-8")
    command = ("chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-sync --dump-dom "
               "--disable-background-networking --disable-component-update --enable-logging=stderr").split()
    result = subprocess.run([*command, f"--user-data-dir={path.parent}/chromium", path.as_uri()],
                            capture_output=True, encoding="utf-8")
    assert "CONSOLE" not in result.stderr and "<title>run</title>" in result.stdout
    return result.stdout


@pytest.mark.release
@in_a_browser
def test_in_a_browser_the_controls_work_and_nothing_else_runs(tmp_path):
    run = make_run(tmp_path / "run", HOSTILE)
    path = page.write(run)
    dom = browse(path)
    assert 'class="up low" tabindex="0" style="--size: ' in dom and 'class="live" hidden' not in dom
    clicks = "evaluation.value = 0; mode.value = 'π'; mode.onchange(); step.value = 2; step.oninput()"
    dom = browse(path, clicks)
    assert "validation 0.5" in dom and '<section data-step="0">' in dom and 'class="level low"' in dom
    (run / "tokens.jsonl").unlink()
    assert "<section" not in browse(page.write(run))


MOVES = """
function move(settings) {
  reset.click();
  for (const [id, value] of Object.entries(settings)) {
    const control = document.getElementById(id);
    control.value = value;
    control.dispatchEvent(new Event("input", {bubbles: true}));
  }
  const boxes = all("section:not([hidden]) [data-p]");
  return {counts: counts.textContent, titles: boxes.map(box => box.title), curve: now.getAttribute("d"),
          shades: boxes.map(box => parseFloat(box.style.getPropertyValue("--size")))};
}
document.body.dataset.seen = JSON.stringify(%s.map(move));
"""
# What is moved, and what then differs from the run's settings. tau's slider has its logarithm to the base 3.
CASES = [({}, {}), ({"alpha": 3}, {"alpha": 3}), ({"alpha": 0.5}, {"alpha": 0.5}), ({"mu": 0.4}, {"mu": 0.4}),
         ({"tau": 2}, {"tau": 9}), ({"tau": 0}, {"tau": 1}), ({"tau": -2}, {}), ({"L": 1.3}, {"low": 1.3}),
         ({"U": 2}, {"high": 2}), ({"L": 1.6}, {"low": 1.6, "high": 1.6}), ({"U": 0.5}, {"low": 0.5, "high": 0.5}),
         ({"L": 0, "U": 2, "mu": 0.5, "alpha": 4, "tau": 0},
          {"low": 0, "high": 2, "mu": 0.5, "alpha": 4, "tau": 1}),
         ({"shaping": "none"}, {"shaping": "none"}), ({"shaping": "ar"}, {"shaping": "ar"})]


@pytest.mark.release
@in_a_browser
def test_in_a_browser_a_slider_changes_weights_colors_and_counts_as_grpo_sg_does(tmp_path):
    run = make_run(tmp_path / "run", HOSTILE, [4])
    dom = browse(page.write(run), MOVES % json.dumps([moved for moved, _ in CASES]))
    logps = torch.tensor([float(pi) for pi in Page(run).values("data-p")]).log()
    A = ADVANTAGES.repeat_interleave(len(HOSTILE) - 1)
    grid = torch.linspace(0, 1, 201).log()
    seen = json.loads(html.unescape(re.search('data-seen="(.*?)"', dom)[1]))
    for (_, settings), now in zip(CASES, seen):
        cfg = Config(**settings)
        w, curve = (torch.ones_like(x) if weigh(x, cfg) is None else weigh(x, cfg) for x in (logps, grid))
        scale = 70 / (token_weights(logps) * A).abs().max()
        low, high = (w <= cfg.low).sum(), ((w >= cfg.high) & (w > cfg.low)).sum()
        clipped = f"The weight is L for {low} of them, between L and U for {len(w) - low - high}, and U for {high}."
        assert (clipped in now["counts"]) == (cfg.shaping == "sg") and f"the {len(w)} tokens" in now["counts"]
        times = "" if w[0] == 1 else f" with {w[0]:.4g} times the loss"
        constant = f"every token has the weight {w[0]:.4g}: plain GRPO{times}."
        assert (constant in now["counts"]) == bool(curve.max() == curve.min())
        for found, expected, error in (
                ([float(re.search("below is ([0-9.]*[0-9])", now["counts"])[1])], w.mean()[None], 1e-3),
                ([float(re.search("w = (.*?),", title)[1]) for title in now["titles"]], w, 1e-3),
                (now["shades"], (scale * (w * A).abs()).clamp(max=100), 0.1),
                ([float(point.split()[1]) for point in now["curve"].split("L")], 100 - 44 * curve, 0.01)):
            assert found == pytest.approx(expected.tolist(), abs=error)
