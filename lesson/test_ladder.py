"""The ladder climbs, a rung prints its question first, and the answers are what was measured."""
import contextlib
import io
import pathlib
import re
import runpy
import sys

import pytest
import torch

from lesson import ladder

LESSON = pathlib.Path(__file__).parent
LADDER = (LESSON / "ladder.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The ladder's code with half of the steps, prompts and layers."""
    code = LADDER
    for old, new in (("STEPS = 30", "STEPS = 15"), ("10, 20, 30  #", "10, 15  #"),
                     ("P, G = 16, 8", "P, G = 8, 8"), ("n_layer=2", "n_layer=1")):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    path = tmp_path_factory.mktemp("small") / "ladder.py"
    path.write_text(code, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def lines(small):
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        for arguments in ("4 --try --seeds 2", "5d 7 --seeds 2"):
            patch.setattr(sys, "argv", ["ladder.py", *arguments.split()])
            runpy.run_path(str(small), run_name="__main__")
    return said.getvalue().splitlines()


def rewards_in(lines, title=r"(\w+)\. "):
    """{rung: mean ± standard error} of the ladder's lines, as they are written."""
    return dict(re.findall(rf"^{title}.*\| ([\d.]+ ± [\d.]+)$", "\n".join(lines), re.M))


def test_a_rung_prints_its_question_first_and_its_answer_last(lines):
    starts = [line[:2] for line in lines if re.match(r"Predict: |Answer: |\d\w*(\.| try:) ", line)]
    assert starts[:6] == ["Pr", "4.", "4 ", "4 ", "An", "An"]  # that of the rung, and that of its Try
    assert starts[6:] == ["Pr", "5b", "An", "Pr", "5d", "An", "Pr", "7.", "An"]
    questions = re.findall(r'^predict\("(\w+)"', LADDER, re.M)
    assert set(questions) == set(ladder.NAMES) - {"4b"}  # it has the question of 4
    assert re.findall(r'^answer\("(\w+)"', LADDER, re.M) == questions
    assert re.findall(r'climb(?:_and_measure)?\("(\w+)\. ', LADDER) == ladder.NAMES
    named = set(re.findall(r"lesson\.ladder (\w+) --try\b", LADDER))
    assert named == set(re.findall(r'\("(\w+) try: ', LADDER))


def test_bad_completions_spoil_four_updates_but_not_with_ratio_and_clip(lines):
    tries, rungs = rewards_in(lines, r"4 try: (\w+)"), rewards_in(lines)
    assert tries["bad"] < rungs["4"] < min(tries["good"], rungs["5b"], rungs["7"])


def test_rung_7_is_compared_with_5b_and_shows_how_w_grows(lines):
    at, = (i for i, line in enumerate(lines) if line.startswith("the mean of w: "))
    assert re.fullmatch(r"7 minus 5b, paired by seed: [+-]\d\.\d{3} ± \d\.\d{3}", lines[at + 1])
    w = [float(x) for x in re.findall(r"(\d\.\d\d) in step", lines[at])]
    assert len(w) == 4 and w == sorted(w)
    assert 1 <= w[0] < 1.15 and 1.3 < w[-1] <= 1.4


def test_rung_5d_is_5b_and_its_kl_grows(lines):
    assert rewards_in(lines)["5d"] == rewards_in(lines)["5b"]
    line, = (line for line in lines if line.startswith("    KL "))
    first, *_, last = re.findall(r"([\d.]+) in step", line)
    assert float(first) == 0 and float(last) > 1


def test_k1_and_k3_have_the_kl_as_their_mean_and_k2_has_not():
    """Over all eight tokens that may follow a prompt, weighted by their probability."""
    torch.manual_seed(0)
    model, reference = ladder.new_model(), ladder.new_model()
    for p in reference.parameters():
        p.data *= 6.0
    pi, ref = (m(input_ids=torch.tensor([[3]])).logits[0, -1].softmax(-1).double()
               for m in (model, reference))
    mean = torch.zeros(5).double()
    for token in range(8):
        values = ladder.measure(model, reference, torch.tensor([[3, token]]),
                                torch.tensor([[False, True]]))
        mean += pi[token] * torch.tensor(values).double()
    entropy, kl, k1, k2, k3 = mean.tolist()
    assert entropy == pytest.approx(-(pi * pi.log()).sum().item(), abs=1e-5)
    expected = (pi * (pi / ref).log()).sum().item()
    assert [kl, k1, k3] == pytest.approx([expected] * 3, abs=1e-5)
    assert abs(k2 - expected) > 0.01


def test_the_table_of_the_clip_is_right():
    answer = LADDER.split('answer("5b"')[1].split("# ---- ")[0]
    table = re.findall(r"^ +A ([<>]) 0 +(\w+) +(\w+) +(\w+)", answer, re.M)
    assert len(table) == 2
    for sign, *cells in table:
        for r, cell in zip((0.5, 0.9, 1.5), cells):
            logps = torch.tensor(r).log().requires_grad_()
            ladder.clipped_ratio(logps, torch.tensor(0.0), 1.0 if sign == ">" else -1.0).backward()
            assert (cell == "yes") == (logps.grad != 0), (sign, r)


def test_the_try_of_rung_3_makes_some_prompts_pay_more():
    """With ten times the reward in half of the groups, only a division by the std treats both alike."""
    seen = {}
    for times in (1, 10):
        def keep(R, times=times):
            seen[times] = R
            return torch.zeros_like(R)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ladder, "STEPS", 1)
            ladder.train(0, keep, ladder.log_likelihood, times=times)
    ratio = (seen[10] / seen[1].clamp(min=1e-9)).amax(1)
    assert {round(x) for x in ratio.tolist()} <= {0, 1, 10} and {1, 10} <= {round(x) for x in ratio.tolist()}
    torch.testing.assert_close(ladder.group_advantages(seen[10]), ladder.group_advantages(seen[1]), atol=1e-3, rtol=0)


def test_an_ascii_terminal_gets_digits_and_no_blocks(small, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["ladder.py", "1", "6", "--seeds", "2"])
    runpy.run_path(str(small), run_name="__main__")
    assert re.search(r"\|[1-8 ]{15}\| 0\.\d{3} \+- 0\.\d{3}\n", raw.getvalue().decode())


def test_the_answers_are_what_ten_seeds_gave():
    text = (LESSON / "results" / "ladder_10.txt").read_text(encoding="utf-8")
    assert list(rewards_in(text.splitlines())) == ladder.NAMES
    answers = re.findall(r"\b0\.\d{3}\b", LADDER.split("# ---- 1. REINFORCE")[1])
    assert len(answers) > 10 and set(re.findall(r"\d\.\d{3}", text)).issuperset(answers)
    answers = re.findall(r"\d\.\d\d\b", LADDER.split('answer("5d"')[1].split("# ---- 6.")[0])
    assert len(answers) > 4 and set(re.findall(r"\d+\.\d\d\b", text)).issuperset(answers)
