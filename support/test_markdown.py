"""Check the pages' links, anchors, commands, code and calculation, who imports whom, and the
requirements."""
import json
import math
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

import grpo_sg
import tasks
from test_grpo_sg import build_model, byte_tokenizer

ROOT = pathlib.Path(__file__).parents[1]
NAMES = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in NAMES
         if name.endswith((".md", ".py")) and (ROOT / name).exists()}
PAGES = [name for name in TEXTS if name.endswith(".md")]
ENGINES = "support/bridges/"  # these commands need other packages


def anchors_of(page):
    """Return the anchors that GitHub makes from headings."""
    titles = re.findall(r"^#+ (.*)$", TEXTS[page], re.M)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_exist(page):
    text = re.sub(r"```.*?```", "", TEXTS[page], flags=re.S)
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", text):
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        if anchor:
            read = target / "README.md" if target.is_dir() else target
            assert anchor in anchors_of(str(read.resolve().relative_to(ROOT))), f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_whole_lines_of_code(page):
    """GitHub cuts off what is longer."""
    for code in re.findall(r"^```.*?^```", TEXTS[page], re.M | re.S):
        assert not [line for line in code.splitlines() if len(line) > 95]


def test_the_hours_of_a_night_are_those_of_its_calculation(capsys):
    page = TEXTS["support/gpu.md"]
    exec(re.search(r"```python\n(# night.py.*?)```", page, re.S)[1], {})
    computed = re.findall(r"([\d.]+) hours$", capsys.readouterr().out, re.M)
    told = re.findall(r"\| (\d+) hours", page)
    assert len(told) == 8 and [math.ceil(float(hours)) for hours in computed] == list(map(int, told))


def find_commands():
    """Return (page, words after "python") of each command, without comments."""
    commands = []
    for page in PAGES:
        text = "" if page.startswith(ENGINES) else TEXTS[page].replace("\\\n", " ")
        for pair in re.findall(r"^python ([^\n#]+)|(?<!`)`python\s([^`]+)`", text, re.M):
            for part in f"python {''.join(pair)}".split("&&"):
                if part.strip().startswith("python "):
                    commands.append((page, shlex.split(part)[1:]))
    return commands


COMMANDS = find_commands()


def find_task(words):
    """Return the task that a command names, or "". Tasks in capitals are the reader's."""
    task = words[2] if words[:2] == ["-m", "support.tiny"] else ""
    if "--task" in words:
        task = words[words.index("--task") + 1]
    if task == "my_task.py":
        return "lesson/my_task.py"
    return "" if task.removesuffix(".py").isupper() else task


@pytest.mark.parametrize("page, words", COMMANDS, ids=lambda value: value if isinstance(value, str) else shlex.join(value))
def test_a_command_has_a_script_flags_and_a_task_that_exist(page, words, monkeypatch, capsys):
    name = words[1] if words[0] == "-m" else words[0]
    if name in ("pytest", "venv"):  # no part of the project
        return
    path = name if name.endswith(".py") else f"{name.replace('.', '/')}.py"
    printed = any(f"```python\n# {name}" in TEXTS[page] for page in PAGES)
    assert path in TEXTS or printed, words
    monkeypatch.chdir(ROOT)
    if find_task(words):
        tasks.load_task(find_task(words))
    flags = {word for word in words if word.startswith("--")} - {f"--{name}" for name in vars(grpo_sg.Config())}
    if name == "grpo_sg.py" or printed:
        grpo_sg.parse_flags(words[1:])
    elif flags:
        monkeypatch.syspath_prepend(str(ROOT))
        monkeypatch.setattr(sys, "argv", [path, "--help"])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(path, run_name="__main__")
        said = capsys.readouterr().out
        assert all(flag in said for flag in flags)


def test_commands_are_found():
    assert ("README.md", ["grpo_sg.py"]) in COMMANDS  # or the pattern finds nothing


def test_lesson_and_experiments_stand_side_by_side_on_support():
    for folder, others in (("lesson", "experiments"), ("experiments", "lesson"),
                           ("support", "experiments|lesson"), ("verify", "experiments|lesson|support")):
        for name in TEXTS:
            if name.startswith(f"{folder}/") and name.endswith(".py"):
                assert not re.search(rf"^ *(?:from|import) (?:{others})\b", TEXTS[name], re.M), name


def test_the_complete_loop_learns_with_grpo_sg_only(tmp_path):
    script, = re.findall(r"```python\n(# loop.py.*?)```", TEXTS["support/README.md"], re.S)
    build_model(vocab_size=300).save_pretrained(tmp_path / "model")
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
    byte_tokenizer(template).save_pretrained(tmp_path / "model")
    # An untrained model, which can learn to write digits.
    digits = "return sum(c.isdigit() for c in completion.response) / max(1, len(completion.response))"
    for old, new in (("HuggingFaceTB/SmolLM2-135M-Instruct", "model"), ("lr=1e-5", "lr=1e-2"),
                     ("return 1.0 * completion.correct + 0.1 * completion.formatted", digits),
                     ("    print(row", "    rewards.append(row['reward'])\n    print(row"),
                     ("for row,", "rewards = []\nfor row,")):
        assert old in script
        script = script.replace(old, new)
    shutil.copy(ROOT / "grpo_sg.py", tmp_path)
    done = subprocess.run([sys.executable, "-c", f"{script}\nprint('rewards', *rewards)"], cwd=tmp_path, timeout=300,
                          env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert "rewards" in done.stdout, done.stderr
    rewards = [float(word) for word in done.stdout.rpartition("rewards")[2].split()]
    assert len(rewards) == 20 and sum(rewards[-3:]) > sum(rewards[:3]) + 0.5
    assert grpo_sg.load_model(str(tmp_path / "trained"))


def test_the_header_for_uv_pins_the_requirements():
    pinned = (ROOT / "requirements.txt").read_text().split()
    for name, more in (("grpo_sg.py", 0), ("test_grpo_sg.py", 1)):  # pytest as well
        needed = re.search(r"# dependencies = (\[[^]]*\])", (ROOT / name).read_text())[1]
        needed = json.loads(needed.replace("\n#", ""))
        assert needed[:4] == pinned and len(needed) == 4 + more


def test_the_ranges_of_pyproject_have_the_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = map(Requirement, project["dependencies"] + project["optional-dependencies"]["dev"])
    ranges = {range.name: range.specifier for range in ranges}
    for line in (ROOT / "requirements.txt").read_text().split():
        name, version = line.split("==")
        assert version in ranges[name], line
