"""Test page.py: the page matches the files, and model-written text never runs."""
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import grpo_sg
import tasks
from grpo_sg import Completion, Config, group_advantages, token_weights, weigh
from support import page

HOSTILE = ["<script>document.title = 1</script>", "</script></style>", '"><img src=x onerror=a()>', "\0",
           "\u2028", "\ud800", "\u202egnp", "\x1b[2J", "{0}{style}%s", "&lt;b&gt;", "javascript:a()", ""]
ADVANTAGES = group_advantages(torch.tensor([[3.0, -0.5, -3.0]]))[0]


class Page(html.parser.HTMLParser):
    """Parse a page: its tags, which must be closed in order, their attributes, and its boxes."""
    def __init__(self, folder, tokens=""):
        super().__init__()
        self.text = page.write(folder, tokens).read_text("utf-8")
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


def make_run(folder, words=("<think>", "KNK", "</answer>"), **settings):
    """Write the files of a run, as grpo_sg.py does."""
    folder.mkdir()
    train = {"reward": settings.get("seed", 1), "seconds": 2.0, "weight_mean": 1.39, "low_prob_frac": 0.01,
             "format_rate": 0.5, "kl": None}
    rows = {"metrics": [{"step": step, **train, "skipped": (0, 2, 0, 3)[step - 1]} for step in range(1, 5)], "samples": []}
    for step, split in ((0, "test"), (2, "valid"), (4, "test")):
        labels = {"step": step, "split": split}
        rows["metrics"].append({**labels, "eval/accuracy": 0.25 + step / 8, "eval/accuracy_se": 0.03})
        if split == "test":
            rows["metrics"][-1] |= {"eval/avg@4": 0.5 + step / 10, "eval/avg@4_se": 0.02 if step else None}
        verdict = {"reward": 3.0, "correct": step > 0, "formatted": True, "truncated": False}
        rows["samples"] += [{**labels, "question": word, "answer": word, "completion": word, **verdict}
                            for word in words]
    settings = {"task": "kk", "shaping": "sg", "steps": 6, "eval_samples": 4, **settings}
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


def test_a_chat_is_shown_turn_by_turn():
    chat = [{"role": "user", "content": "1 < 2?"}, {"role": "assistant", "content": "yes"}]
    assert page.shown(chat) == "user: 1 &lt; 2?\nassistant: yes"
    assert page.shown(["a", "b"]) == html.escape("['a', 'b']")


def show_tokens(words):
    """Return the token view of one group before and after training. The last token is a tool's."""
    logps = torch.linspace(-6, 0, len(words))
    group = []
    for A in ADVANTAGES.tolist():
        c = Completion(tasks.Problem(words[0], {"Ada": words}), [1], list(range(len(words))),
                       [True] * (len(words) - 1) + [False], truncated=A < 0, advantage=A)
        group.append((c, logps.exp().tolist(), token_weights(logps).tolist()))
    tokenizer = SimpleNamespace(decode=lambda ids: "".join(words[i] for i in ids))
    groups = page.show_groups(tokenizer, [group])
    rows = [{"step": 1, "low_prob_frac": 0.01, "weight_mean": 1.39}]
    return page.fill({"before training": groups, "after training": groups}, Config(), rows)


def test_a_page_matches_the_files(tmp_path):
    words = ["<think>", "KNK", "</answer>"]
    seen = Page(make_run(tmp_path / "run"), tokens=show_tokens(words))
    assert seen.boxes == words * 6 and seen.values("class").count("tool") == 6
    pi, w, A = (torch.tensor([float(x) for x in seen.values(f"data-{name}")]) for name in "pwa")
    torch.testing.assert_close(w, token_weights(pi.log()), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(A, ADVANTAGES.repeat(2))
    assert seen.values("data-points")[0] == "[[1, 1.0], [2, 1.0], [3, 1.0], [4, 1.0]]"
    assert seen.values("class").count("advice") == len(page.CURVES)
    for text in ("4 of 6 steps, 8 s", "avg@4, ± standard error: 0.500 ± 0.000 → 0.900 ± 0.020",
                 "greedy accuracy, ± standard error: 0.250 ± 0.030 → 0.750 ± 0.030", "wrong → correct: 3",
                 "reward 0, malformed", "reward 0, truncated",
                 'Step 0, wrong:\nKNK</div><div class="text">Step 4, correct:\nKNK</div>', "KNK\nAnswer: KNK</p>",
                 "Skipped updates: 5, because their gradients were not finite (first in step 2, last in step 4)",
                 "In training, 1.0%", 'title="test, greedy" data-points="[[0, 0.25], [4, 0.75]]">test, greedy 0.75<',
                 'title="test, avg@4" data-points="[[0, 0.5], [4, 0.9]]">test, avg@4 0.9<',
                 'title="validation, greedy" data-points="[[2, 0.5]]">validation, greedy 0.5<'):
        assert text in seen.text
    curves = dict(re.findall("<figure><div><b>(.*?)</b>.*?data-points=.*?>(.*?)<", seen.text))
    assert curves["Completions in the correct format"] == "training 0.5"


def test_the_command_samples_with_the_first_and_the_last_model(tmp_path):
    """At the run's temperature, for validation problems, of which its training problems are not made. The page
    samples on the CPU, because the run may fill the GPU. Groups without a signal are folded."""
    settings = json.loads(pathlib.Path("support/pretrained/kk/settings.json").read_text())
    run = make_run(tmp_path / "run", **{**settings, "train_problems": 20, "eval_problems": 9, "model": "support/pretrained/kk", "device": "cuda:9", "temperature": 0.8})
    shutil.copytree("support/pretrained/kk", run / "checkpoint-4")
    model, _ = grpo_sg.load_model(run / "checkpoint-4")
    torch.nn.init.zeros_(model.get_output_embeddings().weight)  # so every token is as likely
    model.save_pretrained(run / "checkpoint-4")
    with mock.patch.object(grpo_sg, "rollout", wraps=grpo_sg.rollout) as rollout:
        seen = Page(run, tokens=page.view(run))
    for _, task, problems, *_ in (call.args for call in rollout.call_args_list):
        assert problems == task.valid[:8] and len(task.valid) == 9 and len(task.train) == 3
    assert [call.kwargs["temperature"] for call in rollout.call_args_list] == [0.8, 0.8]
    before, after = seen.text.split("<section")[1:]
    assert before.count("<details open>") == 3 and "<details open>" not in after
    assert "KNK" in before
    groups = [[float(A) for A in re.findall("data-a=([^>]*)", group)] for group in before.split("<details")[1:]]
    assert all(group == sorted(group, reverse=True) for group in groups) and groups[0][0] > 0.3  # visible
    assert len(re.findall("A = [0-9.]+, ▲ pushed up", before)) == sum(A > 0 for A in sum(groups, []))
    assert len(re.findall("A = -[0-9.]+, ▼ pushed down", before)) == sum(A < 0 for A in sum(groups, []))
    assert after.count("A = 0, not pushed") == after.count("<li data") == 24
    uniform = f"data-p={1 / model.config.vocab_size:.4g} data-w=1"
    assert after.count("data-p=") == after.count(uniform) > 100 and uniform not in before


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), KeyboardInterrupt(), SystemExit("error: no task")])
def test_a_run_whose_tokens_cannot_be_sampled_has_a_page(error, tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run")

    def view(folder):
        assert (run / "report.html").exists()  # also while the tokens are sampled
        raise error
    monkeypatch.setattr(page, "view", view)
    monkeypatch.setattr(sys, "argv", ["page", str(run)])
    page.main()
    said = capsys.readouterr()
    assert said.out.startswith(f"{run}/report.html\n") and f"no tokens: {error!r}\n" in said.err
    assert "<section" not in (run / "report.html").read_text("utf-8")


def test_a_folder_that_is_no_run_and_damaged_settings_are_named(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    (run / "settings.json").write_text('{"task": "kk",}')
    for folder, words in ((tmp_path, "is not a run"), (run, ".*run/settings.json ")):
        monkeypatch.setattr(sys, "argv", ["page", str(folder)])
        with pytest.raises(SystemExit, match=f"^error: {'' if folder == run else folder} ?{words}"):
            page.main()


def test_an_axis_is_as_long_as_the_data_and_has_round_numbers():
    for ends, ticks in (((0.6, 0.9), [0.6, 0.7, 0.8, 0.9]), ((-3, 2.6), [-4, -2, 0, 2, 4]), ((7, 7), [6, 8])):
        assert page.ticks(*ends) == pytest.approx(ticks)


def test_model_written_text_runs_nothing_loads_nothing_and_is_cut(tmp_path):
    """The page of a stranger's run that is a link is replaced: it could lead to somebody's file."""
    words = [*HOSTILE * 60, "x" * 1_000_000 + "the end"]
    run, other = make_run(tmp_path / "<b>", words, model="<b>", shaping=HOSTILE[2]), tmp_path / "other.txt"
    other.write_text("mine")
    (run / "report.html").symlink_to(other)
    seen = Page(run, tokens=show_tokens(words))
    assert other.read_text() == "mine"
    # Quotes end no attribute.
    assert json.loads(seen.values("data-run")[0]) == {"shaping": "sg", "alpha": 2, "tau": 1 / 9, "mu": 0.25, "L": 1, "U": 1.4}
    assert [tag for tag, _ in seen.tags if tag in ("script", "img", "a", "link", "iframe")] == ["script"]
    assert not {key for _, attributes in seen.tags for key in attributes if re.match("on|src|href|style", key)}
    assert not re.search("[\0\x1b\u2028\u202e\ud800]|url[(]|https?:|@import", seen.text)
    assert "default-src 'none'; style-src 'sha256-" in seen.values("content")[1]
    assert len(seen.boxes) == 2 * 3 * 600 and "181 of 721, greedy" in seen.text
    assert len(seen.text) < 1_500_000 and "xthe end</div>" in seen.text  # where its answer is


@pytest.mark.parametrize("name, old, new", [
    ("samples.jsonl", '"step": 0', '"step": "%s"'), ("metrics.jsonl", '"step": 2', '"step": "%s"'),
    ("settings.json", '"eval_samples": 4', '"eval_samples": "%s"')])
def test_no_file_of_a_run_writes_tags_into_its_page(name, old, new, tmp_path):
    run = make_run(tmp_path / "run")
    hostile = '<meta http-equiv=\\"refresh\\" content=\\"0;url=//evil\\">'
    assert old in (text := (run / name).read_text())
    (run / name).write_text(text.replace(old, new % hostile))
    metrics = run / "metrics.jsonl"  # whose columns are named after eval_samples
    metrics.write_text(metrics.read_text().replace("avg@4", f"avg@{hostile}"))
    seen = Page(run)
    assert [tag for tag, _ in seen.tags].count("meta") == 3  # the page's own
    assert "<meta http-equiv=" + '"refresh' not in seen.text


def test_up_to_200_test_problems_are_all_shown_and_of_a_long_curve_every_second_point(tmp_path):
    for count, told in ((200, "200 of 200, greedy"), (201, "101 of 201, greedy")):
        assert told in Page(make_run(tmp_path / str(count), ["KNK"] * count)).text
    drawn = page.chart("", "", [("reward", "k0", {step: -step for step in range(1, 900)})], 900)
    points = json.loads(re.search('data-points="(.*?)"', drawn)[1])
    assert points == [[step, -step] for step in range(1, 900, 2)]
    assert 'd="M48.3 12.1L' in drawn and '<text x="44" y="12.0" dy="3">0</text>' in drawn


def test_a_killed_run_and_one_with_nan_have_a_page(tmp_path):
    for left in (None, 0, 1, 1000, 1500):
        for file in make_run(tmp_path / f"{left}").glob("*.jsonl"):
            file.unlink() if left is None else file.write_bytes(file.read_bytes()[:left] + b"\xff")
        text = Page(tmp_path / f"{left}").text
        assert "<h2>" in text and ("Skipped" in text) == (left in (1000, 1500))
    path = make_run(tmp_path / "run") / "metrics.jsonl"
    path.write_text(re.sub('("reward": )[^,]+', r"\1NaN", path.read_text(), count=1))
    seen = Page(tmp_path / "run")
    assert "nan" not in " ".join(seen.values("d")).lower() and seen.values("data-points")[0].startswith("[[2, ")


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
CASES = [({}, {}), ({"alpha": 3}, {"alpha": 3}), ({"mu": 0.4}, {"mu": 0.4}), ({"tau": 2}, {"tau": 9}),
         ({"L": 1.6}, {"low": 1.6, "high": 1.6}), ({"U": 0.5}, {"low": 0.5, "high": 0.5}),
         ({"shaping": "none"}, {"shaping": "none"}), ({"shaping": "ar"}, {"shaping": "ar"})]


@pytest.mark.release
@pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not installed")
def test_in_a_browser_the_sliders_change_weights_and_colors_as_grpo_sg_does_and_nothing_else_runs(tmp_path):
    shown = show_tokens(HOSTILE)
    path = page.write(make_run(tmp_path / "run", HOSTILE), shown)
    dom = browse(path)
    assert 'class="up low" tabindex="0" style="--size: ' in dom and 'class="live" hidden' not in dom
    dom = browse(path, "model.value = 0; mode.value = 'π'; mode.onchange(); step.value = 2; step.oninput()")
    assert "validation, greedy 0.5" in dom and dom.index("<section>") < dom.index("<section hidden") and 'class="level low"' in dom
    dom = browse(path, MOVES % json.dumps([moved for moved, _ in CASES]))
    logps = torch.tensor([float(pi) for pi in re.findall("data-p=([^ ]*)", shown)]).log()
    logps = logps[:len(logps) // 2]  # one of the two models is shown
    A = ADVANTAGES.repeat_interleave(len(HOSTILE) - 1)
    grid = torch.linspace(0, 1, 201).log()
    seen = json.loads(html.unescape(re.search('data-seen="(.*?)"', dom)[1]))
    for (_, settings), now in zip(CASES, seen):
        cfg = Config(**settings)
        w, curve = (torch.ones_like(x) if weigh(x, cfg) is None else weigh(x, cfg) for x in (logps, grid))
        scale = 70 / (token_weights(logps) * A).abs().max()
        assert ("plain GRPO" in now["counts"]) == bool(curve.max() == curve.min())
        for seen_now, expected, error in (
                ([float(re.search("below is ([0-9.]*[0-9])", now["counts"])[1])], w.mean()[None], 1e-3),
                ([float(re.search("w = (.*?),", title)[1]) for title in now["titles"]], w, 1e-3),
                (now["shades"], (scale * (w * A).abs()).clamp(max=100), 0.1),
                ([float(point.split()[1]) for point in now["curve"].split("L")], 100 - 44 * curve, 0.01)):
            assert seen_now == pytest.approx(expected.tolist(), abs=error)
