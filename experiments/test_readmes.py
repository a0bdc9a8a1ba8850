"""What the READMEs show is what there is: equations, cheats, tables, links, messages, commands, scripts."""
import os
import re
import runpy
import sys

import pytest

import grpo_sg
import tasks
from support.models import save_model
from support.test_data import lines

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ".", "support", "experiments"


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


README, SUPPORT, EVIDENCE = (read(folder, "README.md") for folder in FOLDERS)
SOURCES = "".join(read(folder, name) for folder in FOLDERS[:2] for name in sorted(os.listdir(os.path.join(ROOT, folder)))
                  if name.endswith(".py"))


def rows(text, head):
    """The cells of the table whose first line begins with `head`."""
    table = text[text.index(f"\n| {head}"):].split("\n\n")[0].strip().split("\n")[2:]
    return [row.strip("| ").split(" | ") for row in table]


def anchors(text):
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_equations_stand_beside_the_code():
    codes = [row[2] for row in rows(README, "| on paper")]
    assert len(codes) == 6 and all(code.strip("`") in read("grpo_sg.py") for code in codes)


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_and_pictures_are_there(folder):
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", read(folder, "README.md")):
        target = os.path.join(folder, path or "README.md")
        assert os.path.exists(os.path.join(ROOT, target)), path
        assert not anchor or anchor in anchors(read(target)), anchor


def test_length():
    assert len(README.splitlines()) <= 170


def test_the_cheats_fail_and_honest_answers_do_not():
    cheats = {row[0].split("`")[1]: (row[1].strip("`"), row[2].strip("`")) for row in rows(README, "`--task` | the gold")}
    people = dict(pair.split() for pair in cheats["kk"][0].split(", "))
    honest = ", ".join(f"{name} is a {role}" for name, role in people.items())
    for text, right in ((cheats["kk"][1], False), (honest, True)):
        verdict = tasks.verify_kk(f"<think> So: </think> <answer> {text} </answer>", people)
        assert verdict == (right, True)
    gold, cheat = cheats["math"]
    assert [tasks.verify_math(text, gold).correct for text in (cheat, f"\\boxed{{{gold}}}")] == [False, True]
    gold, cheat = cheats["qa"]
    assert [tasks.verify_qa(text, [gold]).correct for text in (cheat, f"<answer> {gold} </answer>")] == [False, True]


def test_the_table_of_equal_answers():
    for _, gold, right, wrong in rows(SUPPORT, "rule"):
        for texts, correct in ((right, True), (wrong, False)):
            for text in texts.strip("`").split("`, `"):
                assert tasks.verify_math(f"\\boxed{{{text}}}", gold.strip("`")) == (correct, True), (gold, text)


def test_every_message_file_and_column_is_explained_and_exists():
    whole = re.sub(r'"\n +f?"', "", SOURCES)  # texts over two lines
    for message, _ in rows(SUPPORT, "what you see"):
        for part in message.split("`")[1].split("..."):
            assert part.strip() in whole, message
    here = {name for name in os.listdir(os.path.join(ROOT, "support")) if not re.match(r"test_|_|README", name)}
    assert here == set(re.findall(r"`([^`]*)`", "".join(row[0] for row in rows(SUPPORT, "file"))))


SMALL = "--steps 1 --prompts 2 --group_size 2 --eval_problems 2 --train_problems 20 --max_new_tokens 4"
RUN = {  # and what the test adds
    "grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk": f"{SMALL} --eval_samples 0 --out runs/A",
    "grpo_sg.py --resume --out runs/NAME": "",
    "grpo_sg.py --eval_only --model runs/NAME/checkpoint --eval_data aime24 --eval_samples 16": "",
    "-m support.page runs/NAME": "",
    "-m support.page runs/A runs/B": "",
    "experiments/memory.py": "",
    "experiments/math_verifiers.py": "",
    "experiments/compare.py show": ""}
ELSEWHERE = {"-m pytest -q", "-m experiments.minimal", "backwards.py", "experiments/figures.py"}


def execute(command, monkeypatch):
    script, *argv = command.removeprefix("-m ").split()
    monkeypatch.setattr(sys, "argv", [script, *argv])
    if command.startswith("-m "):
        runpy.run_module(script, run_name="__main__")
    else:
        runpy.run_path(os.path.join(ROOT, script), run_name="__main__")


def test_commands(tmp_path, monkeypatch, capsys):
    """Run; or, where they take minutes or a GPU, only read."""
    monkeypatch.chdir(tmp_path)
    task = tasks.kk_task(grpo_sg.Config(people=[3], train_problems=20, eval_problems=2))
    save_model("Qwen/Qwen2.5-0.5B", *tasks.tiny_model(task))
    problems = lines("problems.jsonl", [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(30)])
    lines("HuggingFaceH4/aime_2024/train.jsonl", [{"problem": "It?", "answer": "033"}])
    monkeypatch.setenv("HF_DATASETS_CACHE", f"{tmp_path}/cache")
    grpo_sg.main(f"--model Qwen/Qwen2.5-0.5B --task math --data {problems} --eval_data aime24 {SMALL} "
                 "--eval_samples 0 --out runs/NAME".split())
    os.symlink("NAME", "runs/B")
    for command, more in RUN.items():
        capsys.readouterr()
        execute(f"{command} {more}", monkeypatch)
        if command == "experiments/memory.py":
            assert capsys.readouterr().out in README
    text = "\n".join((README, SUPPORT, EVIDENCE)).replace("\\\n", " ")
    found = re.findall(r"^python ([^\n#]+)", text, re.M) + re.findall(r"(?<!`)`python ([^`]+)`", text)
    commands = {" ".join(command.split()) for command in found}
    assert commands >= {*RUN, *ELSEWHERE}
    for command in commands - {*RUN, *ELSEWHERE}:
        if command.startswith("grpo_sg.py"):
            grpo_sg.parse(command.split()[1:])
        else:
            with pytest.raises(SystemExit) as stop:
                execute(f"{command} --help", monkeypatch)
            assert stop.value.code == 0, command


def test_the_minimal_script_below_the_sections_that_it_needs(tmp_path, capsys):
    whole, script = read("grpo_sg.py"), read("experiments", "minimal.py")
    imports = "import math, torch\nimport torch.nn.functional as F\nfrom transformers import DynamicCache\n"
    assert script.count("\n") <= 45 and all(name in script for name in re.findall(r"\w+", imports))
    sections = whole[whole.index("# ---- 1."):whole.index("# ---- 4.")]
    (tmp_path / "copied.py").write_text(imports + sections + re.sub("from grpo_sg import.*", "", script))
    runpy.run_path(f"{tmp_path}/copied.py")
    rewards = [float(reward) for reward in re.findall(r"mean reward ([\d.]+)", capsys.readouterr().out)]
    assert rewards[0] < 0.5 and rewards[-1] > 0.9


def test_a_task_of_ones_own(tmp_path, monkeypatch, capsys):
    script, = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "backwards" in block]
    (tmp_path / "backwards.py").write_text(script)
    warm_up = tasks.warm_up
    monkeypatch.setattr(tasks, "warm_up", lambda *given: warm_up(*given[:-1], lambda: 1.0))  # a short one
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))
    monkeypatch.setattr(sys, "argv", ["backwards.py", *SMALL.split(), "--out", f"{tmp_path}/run"])
    runpy.run_path(f"{tmp_path}/backwards.py")
    assert "test after training: accuracy" in capsys.readouterr().out
