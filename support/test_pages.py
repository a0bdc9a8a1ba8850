"""Check the pages' links, anchors, commands and lines to copy, who imports whom, and the
requirements."""
import contextlib
import json
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
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"), *ROOT.glob("support/*/*.md")]
OPTIONAL = "lesson", "experiments"
ENGINES = "support/bridges/"  # these commands need other packages


def is_away(path):
    """Return True if a path is in an optional folder that was deleted."""
    top = path.relative_to(ROOT).parts[:1]
    return bool(top) and top[0] in OPTIONAL and not (ROOT / top[0]).exists()


def anchors_of(page):
    """Return the anchors that GitHub makes from headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", text):
        target = (page.parent / path).resolve() if path else page
        if is_away(target):
            continue
        assert target.exists(), path
        if anchor:
            read = target / "README.md" if target.is_dir() else target
            assert anchor in anchors_of(read), f"{path}#{anchor}"


OLD_WORDS = (r"\b(in place of|beside|hardly|anew|surer|well[- ]formed|badly formed|points? better|"
             r"as printed|what you lose)\b|, too[.,;)]|^#+ (Before|After)\b")


@pytest.mark.parametrize("path", [
    *PAGES, *ROOT.glob("*.py"), *ROOT.glob("[les]*/*.py"), *ROOT.glob("support/*/*.py")],
    ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_programs_use_the_words_of_the_field(path):
    if not path.name.startswith("test_"):
        assert not re.search(OLD_WORDS, path.read_text(encoding="utf-8"), re.I | re.M)


def find_commands():
    """Return (page, words after "python") of each command, without comments."""
    commands = []
    for page in PAGES:
        if str(page.relative_to(ROOT)).startswith(ENGINES):
            continue
        text = page.read_text().replace("\\\n", " ")
        for pair in re.findall(r"^python ([^\n#]+)|(?<!`)`python\s([^`]+)`", text, re.M):
            for part in f"python {''.join(pair)}".split("&&"):
                if part.strip().startswith("python "):
                    commands.append((page.name, shlex.split(part)[1:]))
    return commands


def find_task(words):
    """Return the task that a command names, or "". Tasks in capitals are the reader's."""
    task = words[2] if words[:2] == ["-m", "support.tiny"] else ""
    if "--task" in words:
        task = words[words.index("--task") + 1]
    return "" if task.removesuffix(".py").isupper() else task


def check_flags(words, monkeypatch, capsys):
    """Assert that the script or module exists and that its --help lists the flags."""
    name = words[1] if words[0] == "-m" else words[0]
    path = ROOT / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
    # The first two are not part of the project, the last needs matplotlib.
    if is_away(path) or name in ("pytest", "venv", "experiments.figures"):
        return
    printed = any(f"```python\n# {name}" in page.read_text() for page in PAGES)
    assert path.exists() or printed, words
    if (name == "grpo_sg.py" or printed) and "--help" not in words:
        grpo_sg.make_parser().parse_args(words[1:])
        return
    flags = {word for word in words if word.startswith("--")}
    flags -= {f"--{setting}" for setting in vars(grpo_sg.Config())}
    if not flags:
        return
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert all(flag in said for flag in flags), words


def test_commands_have_scripts_flags_and_tasks_that_exist(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    commands = find_commands()
    assert ("README.md", ["grpo_sg.py"]) in commands  # or the pattern finds nothing
    for page, words in commands:
        check_flags(words, monkeypatch, capsys)
        task = find_task(words).replace("my_task.py", "lesson/my_task.py").replace("lesson/lesson", "lesson")
        if task and not is_away(ROOT / task):
            assert tasks.load_task(task), page


@pytest.mark.parametrize("module, words", [
    ("support.bridges.trl_train", "--max_new_tokens")])
def test_modules_without_a_command_line_of_their_own_have_help(module, words, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setitem(sys.modules, "trl", None)  # as if it was not installed
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    assert words in capsys.readouterr().out


def test_lesson_and_experiments_stand_side_by_side_on_support():
    for folder, others in (("lesson", "experiments"), ("experiments", "lesson"),
                           ("support", "experiments|lesson"), ("verify", "experiments|lesson|support")):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            found = re.search(rf"^ *(?:from|import) (?:{others})\b.*", path.read_text(), re.M)
            assert not found, f"{path}: {found[0]}"


def test_the_complete_loop_learns_with_grpo_sg_only(tmp_path):
    page = (ROOT / "support" / "README.md").read_text()
    script, = re.findall(r"```python\n(# loop.py.*?)```", page, re.S)
    build_model(vocab_size=300).save_pretrained(tmp_path / "model")
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
    byte_tokenizer(template).save_pretrained(tmp_path / "model")
    # An untrained model, which can learn to write digits.
    digits = "return sum(c.isdigit() for c in completion.response) / max(1, len(completion.response))"
    for old, new in (("HuggingFaceTB/SmolLM2-135M-Instruct", "model"), ("lr=1e-5", "lr=1e-2"),
                     ("return 1.0 * completion.correct + 0.1 * completion.formatted", digits)):
        assert old in script
        script = script.replace(old, new)
    done = run_in(tmp_path, "-c", f"{script}\nprint('rewards', *rewards)".replace(
        "    print(row", "    rewards.append(row['reward'])\n    print(row").replace("for row,", "rewards = []\nfor row,"))
    assert "rewards" in done.stdout, done.stderr
    rewards = [float(word) for word in done.stdout.rpartition("rewards")[2].split()]
    assert len(rewards) == 20 and sum(rewards[-3:]) > sum(rewards[:3]) + 0.5
    assert grpo_sg.load_model(str(tmp_path / "trained"))


def test_the_header_for_uv_pins_the_requirements():
    needed = re.search(r"# dependencies = (.*)", (ROOT / "grpo_sg.py").read_text())[1]
    pinned = (ROOT / "requirements.txt").read_text().split()
    assert json.loads(needed) == pinned


def test_the_ranges_of_pyproject_have_the_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = map(Requirement, project["dependencies"] + project["optional-dependencies"]["dev"])
    ranges = {range.name: range.specifier for range in ranges}
    for line in (ROOT / "requirements.txt").read_text().split():
        name, version = line.split("==")
        assert version in ranges[name], line


# ---- grpo_sg.py alone ----

def run_in(folder, *command):
    shutil.copy(ROOT / "grpo_sg.py", folder)
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=300)


def test_without_tasks_the_script_says_in_one_line_what_it_needs(tmp_path):
    done = run_in(tmp_path, "grpo_sg.py")
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: the command line needs tasks.py next to grpo_sg.py")


@pytest.mark.parametrize("clone", [True, False])
def test_only_a_clone_is_told_of_a_runs_page(clone, tmp_path, monkeypatch, capsys):
    model = str(ROOT / "support" / "pretrained" / "kk")
    if not clone:
        monkeypatch.setattr(grpo_sg, "HERE", str(tmp_path))
    grpo_sg.main(["--model", model, "--out", str(tmp_path / "run"), *(
        "--steps 1 --prompts 2 --updates 1 --train_problems 20 --eval_problems 2 --eval_samples 0").split()])
    assert ("support.page" in capsys.readouterr().out) == clone


def test_an_installed_file_finds_its_neighbors_from_any_folder(tmp_path):
    """As after pip install -e: the module is found, its folder is not on sys.path."""
    done = run_in(tmp_path, "-c", "import importlib.util as u, sys; "
                  f"spec = u.spec_from_file_location('grpo_sg', {str(ROOT / 'grpo_sg.py')!r}); "
                  "grpo_sg = sys.modules['grpo_sg'] = u.module_from_spec(spec); "
                  "spec.loader.exec_module(grpo_sg); grpo_sg.main(['--task', 'chess'])")
    assert "error: --task chess: there is no such" in done.stderr
