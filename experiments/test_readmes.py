"""What the READMEs show is what there is: equations, cheats, tables, links, messages, commands, scripts."""
import json
import pathlib
import re
import runpy
import shlex
import sys

import pytest
import torch

import grpo_sg
import tasks
from experiments.numbers import __main__ as numbers
from support import tiny
from support.test_data import lines
from test_grpo_sg import CHAT, hub_model

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / page for page in ("README.md", "support/README.md", "experiments/README.md", "lesson/README.md",
                                  "lesson/decisions.md", "gpu/README.md", "gpu/hardware.md",
                                  "experiments/reproduce.md", "search/README.md", "bridges/README.md")]
README, SUPPORT, *_ = TEXTS = [page.read_text() for page in PAGES]
COMMANDS = "\n".join(TEXTS[:-1]).replace("\\\n", " ")  # those of the bridges need their engines
CODE = (ROOT / "grpo_sg.py").read_text()
OTHER_MARKS = {"python -m pytest -q test_grpo_sg.py", "python grpo_sg.py"}
SMALL = "--steps 1 --group_size 2 --eval_problems 2 --train_problems 20 --max_new_tokens 4 --eval_samples 0"
RUN = ["grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk", "grpo_sg.py --resume --out runs/NAME",
       "grpo_sg.py --eval_only --model runs/NAME/checkpoint --eval_data aime24 --eval_samples 16",
       "-m support.page runs/NAME", "experiments/math_verifiers.py",
        "-m experiments.compare show", "-m gpu.memory"]
OTHERS = {"-m pytest -q", "-m pytest -q search", "-m pytest -q test_grpo_sg.py", "-m lesson.ladder", "-m lesson.example runs/NAME/warm_start",  # other tests run
          "-m experiments.figures", "-m experiments.numbers",
          "experiments/ignorant_math.py math500.jsonl math_train.jsonl gsm8k_test.jsonl "  # them, or need minutes
          "deepscaler_every_8th.jsonl"}


def rows(text, head):
    """The cells, without their code marks, of the table whose first line begins with `head`."""
    table = text[text.index(f"\n| {head}"):].split("\n\n")[0].strip().split("\n")[2:]
    return [[cell.strip().strip("`") for cell in row.strip("| ").split(" | ")] for row in table]


def test_equations_and_links():
    assert [row[2] in CODE for row in rows(README, "| on paper")] == 6 * [True]
    for page, text in zip(PAGES, TEXTS):
        for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
            target = page.parent / path / "README.md" if path.endswith("/") else page.parent / (path or page.name)
            assert target.exists(), path
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if anchor else [""]
            assert anchor in [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles], anchor


def test_verdicts():
    (roles, lie), (number, formula), (city, cities) = (row[1:3] for row in rows(README, "`--task` | the gold"))
    people = dict(pair.split() for pair in roles.split(", "))
    truth = ", ".join(f"{name} is a {role}" for name, role in people.items())
    kk = [tasks.verify_kk(f"<think> So: </think> <answer> {text} </answer>", people) for text in (lie, truth)]
    math = [tasks.verify_math(text, number) for text in (formula, f"\\boxed{{{number}}}")]
    qa = [tasks.verify_qa(text, [city]) for text in (cities, f"<answer> {city} </answer>")]
    assert [verdict.correct for verdict in (*kk, *math, *qa)] == 3 * [False, True]
    for _, gold, right, wrong in rows(SUPPORT, "rule"):
        for answers, correct in ((right, True), (wrong, False)):
            for answer in answers.split("`, `"):
                assert tasks.verify_math(f"\\boxed{{{answer}}}", gold) == (correct, True), (gold, answer)


def test_every_measured_number_is_that_of_its_raw_file(capsys):
    pages = {name: (ROOT / name).read_text() for name in numbers.PAGES}
    wrong = numbers.check(dict(pages))
    problems = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("ok")]
    assert wrong == 0, "\n".join(problems)
    name = "experiments/README.md"
    row = re.search(r"\n\| `kk` \|.*", pages[name])[0]
    assert numbers.check({**pages, name: pages[name].replace(row, row.replace("GB", "MB"))}) > 0  # a row is lost
    digit = re.search(r"±( \.\d+)", row)
    other = row[:digit.end(1) - 1] + str(9 - int(row[digit.end(1) - 1])) + row[digit.end(1):]
    changed = {**pages, name: pages[name].replace(row, other)}
    assert numbers.check(changed) == 1
    assert numbers.check(changed, write=True) == 0 and changed == pages
    assert numbers.check({**pages, name: pages[name] + "\nIt gains .777, too.\n"}) == 1  # no source


def test_the_lines_for_another_trainer(tmp_path):
    lines = re.search(r"```python\n(pi = .*?)```", README, re.S)[1]
    for shape in ("3", "3, 1", "3, 4"):
        given = f"import torch\nlogps = -3 * torch.rand(3, 4)\nadvantages = torch.randn({shape})\n"
        (tmp_path / "lines.py").write_text(given + lines)
        found = runpy.run_path(f"{tmp_path}/lines.py")
        w = grpo_sg.token_weights(found["logps"])
        assert torch.allclose(found["w"], w)
        assert torch.equal(found["weighted"], found["advantages"].view(3, -1) * found["w"])


def test_what_the_lesson_breaks_is_there():
    """Each of its code marks is of grpo_sg.py or of its tests, but for what is to be written in its place."""
    breaks = TEXTS[3].split("## Five things to break")[1]
    tests = (ROOT / "test_grpo_sg.py").read_text()
    for mark in re.findall(r"`([^`]+)`", re.sub(r"write\s+`[^`]+`", "", breaks)):
        known = CODE + tests if mark.startswith("test_") else CODE
        assert mark in known or mark in OTHER_MARKS, mark


def test_the_example_is_what_its_command_printed():
    printed = (ROOT / "experiments" / "results" / "example.md").read_text()
    for part in printed.split("\n\n"):
        assert part.strip() in TEXTS[3], part


def test_the_header_for_uv_has_the_requirements():
    needed = re.search(r"# dependencies = (.*)", CODE)[1]
    pinned = (ROOT / "requirements.txt").read_text().split()
    assert json.loads(needed) == [line for line in pinned if not line.startswith("pytest")]


def test_messages_and_files():
    sources = re.sub(r'"\n +f?"', "", CODE + "".join(path.read_text() for path in ROOT.glob("support/*.py")))
    for message, _ in rows(SUPPORT, "what you see"):
        assert all(part.strip() in sources for part in message.split("`")[0].split("...")), message
    named = set(re.findall(r"[\w.]+\.\w+", " ".join(row[0] for row in rows(SUPPORT, "file"))))
    assert named == {path.name for path in ROOT.glob("support/[a-z]*.*") if path.name[:5] != "test_"}


def execute(command, monkeypatch):
    monkeypatch.setattr(sys, "argv", shlex.split(re.sub(r"-m (\w+)\.(\w+)", r"\1/\2.py", command)))
    runpy.run_path(str(ROOT / sys.argv[0]), run_name="__main__")


def test_commands(tmp_path, monkeypatch):
    found = re.findall(r"^python ([^\n#]+)|(?<!`)`python ([^`]+)`", COMMANDS, re.M)
    commands = {" ".join("".join(pair).split()) for pair in found}
    assert commands >= {*RUN, *OTHERS}
    monkeypatch.chdir(tmp_path)  # whatever runs/ the project's folder has
    for command in commands - {*RUN, *OTHERS}:  # they take minutes, or a GPU: only read
        if command.startswith("grpo_sg.py"):
            grpo_sg.parse(command.split()[1:])
        else:
            with pytest.raises(SystemExit, match="0"):
                execute(f"{command} --help", monkeypatch)
    monkeypatch.setenv("HF_DATASETS_CACHE", "cache")
    hub_model("Qwen/Qwen2.5-0.5B", CHAT)
    pathlib.Path("HuggingFaceH4/aime_2024").mkdir(parents=True)
    lines("HuggingFaceH4/aime_2024/train.jsonl", [{"problem": "It?", "answer": "033"}])
    lines("my.jsonl", [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(30)])
    grpo_sg.main(f"--model Qwen/Qwen2.5-0.5B --task math --data my.jsonl --eval_data aime24 {SMALL} "
                 "--out runs/NAME".split())
    for command in RUN:
        execute(command.replace("--task kk", f"--task kk {SMALL} --out runs/A"), monkeypatch)


def test_a_task_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text(re.search(r"```python\n(import itertools.*?)```", README, re.S)[1])
    monkeypatch.setattr(tiny, "warm_up", lambda *given: None)
    monkeypatch.setattr(tasks, "TASKS", {})
    monkeypatch.setattr(sys, "argv", ["own.py", *SMALL.split(), "--out", f"{tmp_path}/run"])
    runpy.run_path(f"{tmp_path}/own.py")
    assert "test after training: accuracy" in capsys.readouterr().out
