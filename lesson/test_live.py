"""Open live.html in a browser: its mathematics is grpo_sg.py's, each rung runs and can be answered."""
import html
import json
import pathlib
import re
import shutil
import subprocess

import pytest
import torch

from grpo_sg import group_advantages, grpo_sg_loss, token_weights

PAGE = pathlib.Path(__file__).with_name("live.html")
pytestmark = [pytest.mark.release,
              pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not installed")]


def browse(folder, script):
    """Run a script in the page, where nothing may be written to the console. Returns what it returns."""
    path = folder / "live.html"
    run = f"<script>(async () => {{{script}}})().then(x => document.body.dataset.seen = JSON.stringify(x))</script>"
    path.write_text(PAGE.read_text("utf-8") + run, "utf-8")
    command = ("chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --dump-dom "
               "--disable-background-networking --disable-component-update --enable-logging=stderr "
               "--virtual-time-budget=60000").split()
    result = subprocess.run([*command, f"--user-data-dir={folder}/chromium", path.as_uri()],
                            capture_output=True, encoding="utf-8")
    assert "CONSOLE" not in result.stderr, result.stderr
    return json.loads(html.unescape(re.search('data-seen="(.*?)"', result.stdout)[1]))


def make_case(seed):
    """Return the logits, groups and settings of one update. A completion is its tokens: row, column, pi_old."""
    torch.manual_seed(seed)
    logits = 2 * torch.randn(8, 8, dtype=torch.float64)
    G, groups = int(torch.randint(2, 9, ())), []
    for i in range(3):
        R = torch.randint(0, 5, (G,)) / 4
        if i == 0:  # all rewards are equal, and so large that their mean is rounded
            R = torch.full((G,), 1e9 + 0.3, dtype=torch.float64)
        completions = []
        for length in torch.randint(1, 9, (G,)).tolist():
            row, column = torch.randint(0, 8, (2, length))
            π_old = (logits.log_softmax(1)[row, column] + 0.3 * torch.randn(length)).exp()
            completions.append([{"row": i, "column": k, "π_old": p}
                                for i, k, p in zip(row.tolist(), column.tolist(), π_old.tolist())])
        groups.append({"R": R.tolist(), "completions": completions})
    L, U = (2 * torch.rand(2)).sort()[0].tolist()
    return {"rung": 4 + seed % 2, "logits": logits.tolist(), "groups": groups, "settings": {"L": L, "U": U}}


def compute(case):
    """Return the weights, advantages, loss and gradient that grpo_sg.py computes."""
    logits = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
    completions = [tokens for group in case["groups"] for tokens in group["completions"]]
    mask = torch.tensor([[t < len(tokens) for t in range(8)] for tokens in completions])

    def spread(name, dtype=None):  # (B, T)
        values = torch.tensor([token[name] for tokens in completions for token in tokens], dtype=dtype)
        return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)

    logps = logits.log_softmax(1)[spread("row"), spread("column")]
    old_logps = spread("π_old", torch.float64).log()
    A = group_advantages(torch.tensor([group["R"] for group in case["groups"]], dtype=torch.float64)).flatten()
    w = None
    if case["rung"] == 5:
        w = token_weights(logps, low=case["settings"]["L"], high=case["settings"]["U"])
    loss, _ = grpo_sg_loss(logps, old_logps, A, mask, weights=w, clip_high=0.2)
    loss.backward()
    w = torch.ones_like(logps) if w is None else w
    return [w[mask].tolist(), A.tolist(), [loss.item()], logits.grad.flatten().tolist()]


COMPUTE = """return %s.map(({rung, logits, groups, settings}) => {
  const A = groups.map(({R, completions}) => {
    const A = groupAdvantages(R, RUNGS[rung]);
    completions.forEach((tokens, i) => tokens.forEach(token => token.A = A[i]));
    return A;
  });
  const tokens = groups.flatMap(group => group.completions.flat());
  const {loss, gradient} = computeLoss(tokens, logits, RUNGS[rung], settings);
  return [tokens.map(token => token.w), A.flat(), [loss], gradient.flat()];
});"""


def test_weights_advantages_loss_and_gradient_are_those_of_grpo_sg(tmp_path):
    cases = [make_case(seed) for seed in range(100)]
    for case, seen in zip(cases, browse(tmp_path, COMPUTE % json.dumps(cases))):
        for values, expected in zip(seen, compute(case)):
            assert values == pytest.approx(expected, rel=0, abs=1e-6)


# Run each rung by its controls, and read what then stands on the page. Rung 4 is rung 3 with four updates.
RUN = """const settings = {G: 8, rate: 0.07, L: 1, U: 1.4}, seen = {rungs: [], ten: {}};
for (const input of page.rungs.querySelectorAll("input")) {
  input.click();
  const before = page.answer.textContent;
  page.finish.click();
  while (!page.answer.textContent.startsWith("Answer")) await new Promise(done => setTimeout(done, 100));
  const runs = page.runs.innerText.split("\\n").at(-1), last = mean(run.curve.slice(-5));
  page.again.click();
  page.step.click();
  const objectives = all("#group button").map((button, i) => {
    button.focus();
    return [...[0, 1, 3].map(i => all("dt")[i].textContent), button.className, button.getAttribute("aria-label"), all("td.shown").length];
  });
  seen.rungs.push({name: run.rung.name, before, runs, last, objectives, past: all("#past path").length});
  seen.ten[run.rung.name] = trainTenSeeds(run.rung, settings);
}
seen.ten["2, plus 10"] = trainTenSeeds({...RUNGS[2], plus: 10}, settings);
seen.ten["4"] = Array.from({length: 10}, (_, seed) => {
  const run = beginRun(RUNGS[3], settings, seed);
  for (let step = 0; step < STEPS; step++) {
    sampleGroups(run);
    for (let i = 0; i < 4; i++) {
      const table = run.logits.map(softmax);
      for (const {completions} of run.groups)
        for (const token of completions.flat()) token.π_old = table[token.row][token.column];
      update(run);
    }
  }
  return mean(run.curve.slice(-5));
});
all("#group button")[0].focus();
page.group.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
seen.focus = all("#group button").indexOf(document.activeElement);
seen.labels = all("#past text").map(text => text.textContent);
seen.zero = [...page.policy.rows[1].cells].map(cell => cell.textContent);
page.L.value = 1.8;
page.settings.oninput();
seen.title = page.title.textContent;
return seen;"""


def find_decimals(text):
    """Return the numbers of a line. In "1.00 − 0.98" a space follows the minus."""
    return [float(x.replace("−", "-")) for x in re.findall(r"−?\d+\.\d+(?:e-\d+)?", text)]


def check_objective(advantage, ratio, line, classes, label, cells):
    """Assert that the lines of a token that has the focus have its numbers, and that each number is what the others in its
    line give: they are rounded."""
    if "std" in advantage:
        R, mean_R, std_R, A = find_decimals(advantage)
        assert (R - mean_R) / (std_R + 1e-6) == pytest.approx(A, abs=0.01 + 0.01 * abs(A)), advantage
    π, π_old, r = find_decimals(ratio)
    assert π / π_old == pytest.approx(r, abs=0.005 + 0.01 * r), ratio
    w, r, A, clipped, _, objective = find_decimals(line)
    assert objective == pytest.approx(w * min(r * A, clipped * A), abs=0.01 + 0.01 * abs(A)) and cells == 1
    assert float(label.split()[-1].replace("−", "-")) == pytest.approx(w * A, abs=0.01 + 0.01 * abs(A))
    assert ("up" in classes) == (A > 0) and ("down" in classes) == (A < 0)
    assert "held" not in classes or r >= 1.2 and A > 0 or r <= 0.8 and A < 0


def test_each_rung_runs_is_answered_after_the_run_and_ends_where_its_answer_says(tmp_path):
    seen = browse(tmp_path, RUN)
    assert seen["focus"] == 1  # the arrow key moved on
    assert seen["labels"] == [rung["name"] for rung in seen["rungs"]] and seen["zero"] == ["0", *[""] * 8]
    assert seen["title"].endswith("L is above U, so every w is U")
    ten = {name: sum(rewards) / 10 for name, rewards in seen["ten"].items()}
    for i, rung in enumerate(seen["rungs"]):
        assert rung["before"].startswith("The answer appears") and rung["past"] > i
        assert rung["runs"].startswith(f"Rung {rung['name']} (")
        assert f"): last five steps {rung['last']:.2f}, of ten seeds {ten[rung['name']]:.3f}" in rung["runs"]
        for objective in rung["objectives"]:
            check_objective(*objective)
    assert any("held" in classes for _, _, _, classes, *_ in seen["rungs"][4]["objectives"])
    assert ten["1+10"] < 0.2 and ten["1"] > 0.5
    assert ten["2"] > ten["1"] + 0.02 and seen["ten"]["2, plus 10"] == pytest.approx(seen["ten"]["2"], abs=1e-3)
    assert abs(ten["3"] - ten["2"]) < 0.05 and ten["5b"] > ten["3"] + 0.1 and abs(ten["6"] - ten["5b"]) < 0.005
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"1/8, w is {token_weights(torch.tensor(1 / 8).log()):.2f}" in text
    assert f"ten seeds end at {ten['4']:.2f}" in text


NARROW = """const frame = document.body.appendChild(document.createElement("iframe"));
frame.style.width = "360px";
frame.srcdoc = %s;
await new Promise(done => frame.onload = done);
const inside = frame.contentDocument;
inside.getElementById("finish").click();
while (!inside.getElementById("runs").textContent) await new Promise(done => setTimeout(done, 100));
const lines = [...inside.querySelectorAll("#group li")].map(
  item => new Set([...item.querySelectorAll("button")].map(button => button.offsetTop)).size);
return [inside.documentElement.scrollWidth, lines, ...["rungs", "settings"].map(id => inside.getElementById(id).offsetWidth)];"""


def test_a_telephone_shows_each_completion_in_a_line_and_nothing_beyond_its_edge(tmp_path):
    text = json.dumps(PAGE.read_text("utf-8")).replace("</", "<\\/")
    width, lines, rungs, settings = browse(tmp_path, NARROW % text)
    assert width <= 360 and set(lines) == {1} and rungs == settings


def test_the_page_needs_no_network():
    text = PAGE.read_text("utf-8")
    assert "default-src 'none'" in text and not re.search(r"https?:|src=|href=|@import|url\(", text)
