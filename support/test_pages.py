"""Check the pages' links, anchors, commands and lines to copy, the requirements, and grpo_sg.py
without any other file."""
import ast
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_text_starts_with_a_marker(page):
    """Markdown would treat the whole line as HTML and not render its links."""
    assert not re.findall(r"^ *<!--.*?-->.*\w.*$", page.read_text(), re.M)


def find_commands():
    """Return a dict command -> page, without comments in commands."""
    commands = {}
    for page in PAGES:
        if str(page.relative_to(ROOT)).startswith(ENGINES):
            continue
        text = page.read_text().replace("\\\n", " ")
        for pair in re.findall(r"^python ([^\n#]+)|(?<!`)`python\s([^`]+)`", text, re.M):
            for part in f"python {''.join(pair)}".split("&&"):
                if part.strip().startswith("python "):
                    commands[" ".join(part.split()[1:])] = page.name
    return commands


def check_script(name, flags, monkeypatch, capsys):
    """Assert that the script or module exists and that its --help lists these flags."""
    path = ROOT / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
    package = path.with_suffix("") / "__main__.py"
    path = package if package.exists() else path
    # The first two are not part of the project, the last needs matplotlib.
    if is_away(path) or name in ("pytest", "venv", "experiments.figures"):
        return
    assert path.exists(), name
    if "argparse" in path.read_text():
        monkeypatch.setattr(sys, "argv", [str(path), "--help"])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(str(path), run_name="__main__")
        said = capsys.readouterr().out
        if "other settings" in said:  # those of grpo_sg.py
            flags = [flag for flag in flags if flag.removeprefix("--") not in vars(grpo_sg.Config())]
        assert all(flag in said for flag in flags if flag.startswith("--")), (name, flags)


def test_commands_have_scripts_and_flags_that_exist(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    commands = find_commands()
    assert "grpo_sg.py" in commands
    for command in commands:
        first, *flags = shlex.split(command)
        if first == "grpo_sg.py" and "--help" not in flags:
            grpo_sg.make_parser().parse_args(flags)
        elif first not in ("grpo_sg.py", "my_task.py"):  # a copy of lesson/my_task.py
            name, flags = (flags[0], flags[1:]) if first == "-m" else (first, flags)
            check_script(name, flags, monkeypatch, capsys)


# What the README's lines to copy leave to the reader: the reward is the fraction of digits.
COPIED = """
chats = [[{"role": "user", "content": text}] for text in ("a", "b", "c")]

def reward(i, text):
    rewards.append(sum(c in "0123456789" for c in text) / max(1, len(text)))
    return rewards[-1]

rewards = []
"""


def test_the_lines_to_copy_learn_with_grpo_sg_only(tmp_path):
    page = (ROOT / "README.md").read_text()
    lines = re.search(r"```python\n(import torch.*?)```", page, re.S)[1]
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert name in lines and "lr=1e-5" in lines
    build_model(vocab_size=300).save_pretrained(tmp_path / "model")
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
    byte_tokenizer(template).save_pretrained(tmp_path / "model")
    copy_to(tmp_path, "grpo_sg.py")
    script = lines.replace(name, "model").replace("lr=1e-5", "lr=1e-2")
    done = run_in(tmp_path, "-c", f"{COPIED}{script}\nprint('rewards', *rewards)")
    assert "rewards" in done.stdout, done.stderr
    rewards = [float(word) for word in done.stdout.split("rewards")[1].split()]
    assert len(rewards) == 20 * 24
    assert sum(rewards[-48:]) > sum(rewards[:48]) + 10


def test_the_header_for_uv_pins_the_requirements():
    needed = re.search(r"# dependencies = (.*)", (ROOT / "grpo_sg.py").read_text())[1]
    pinned = (ROOT / "requirements.txt").read_text().split()
    assert json.loads(needed) == [line for line in pinned if not line.startswith("pytest")]


def test_the_ranges_of_pyproject_have_the_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = map(Requirement, project["dependencies"] + project["optional-dependencies"]["dev"])
    ranges = {range.name: range.specifier for range in ranges}
    for line in (ROOT / "requirements.txt").read_text().split():
        name, version = line.split("==")
        assert version in ranges[name], line


def test_every_import_is_declared():
    """Look in pyproject.toml; skip verl, which has its own requirements file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {Requirement(line).name.replace("-", "_") for group in groups for line in group}
    own = {path.stem for path in ROOT.iterdir()}
    files = [*ROOT.glob("*.py"), *ROOT.glob("*/*.py"), *ROOT.glob("support/*/*.py")]
    for path in files:
        if "verl" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top in declared | own | sys.stdlib_module_names, f"{path.name}: {name}"


# ---- grpo_sg.py alone ----

# A random Qwen2 of two layers, a tokenizer with a word for each token, and a task: answer a
# question with one of three words.
ALONE = '''
from types import SimpleNamespace
import grpo_sg
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

WORDS = ["<end>", "yes", "no", "maybe", "who", "what", "why"]

class WordTokenizer:
    def decode(self, ids):
        return " ".join(WORDS[i] for i in ids)

def verify(response, answer):
    return answer in response.split(), response != ""

def reward(completion):
    return float(completion.correct and completion.formatted)

torch.set_num_threads(1)
torch.manual_seed(0)
config = Qwen2Config(vocab_size=7, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
                     initializer_range=0.2, bos_token_id=None, eos_token_id=0, pad_token_id=0)
model = grpo_sg.prepare(Qwen2ForCausalLM(config), "cpu")
policy = grpo_sg.Policy(model, WordTokenizer(), stop_ids={0})
problems = [SimpleNamespace(question=q, answer=a, prompt=[WORDS.index(q)], opening="")
            for q, a in (("who", "yes"), ("what", "no"), ("why", "maybe"))]
task = SimpleNamespace(name="toy", train=problems, valid=problems, test=problems,
                       verify=verify, reward=reward, write=None)
cfg = grpo_sg.Config(steps=25, prompts=3, group_size=16, lr=5e-3, temperature=1.0,
                     max_new_tokens=6)
rows = grpo_sg.train(policy, task, cfg)
row, greedy = grpo_sg.evaluate(policy, task, problems, cfg, samples=4)
print("found", len(rows), rows[0]["reward"], rows[-1]["reward"], row["eval/avg@4"], len(greedy))
'''


def copy_to(folder, *names):
    for name in names:
        shutil.copy(ROOT / name, folder)


def run_in(folder, *command):
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=300)


def test_the_file_alone_trains_a_toy_policy(tmp_path):
    copy_to(tmp_path, "grpo_sg.py")
    done = run_in(tmp_path, "-c", ALONE)
    line, = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    steps, before, after, accuracy, problems = map(float, line.split()[1:])
    assert (steps, problems) == (25, 3)
    assert before < 0.4 and after > 0.8 and accuracy > 0.8
    assert "valid after step 10: greedy accuracy" in done.stdout


def test_without_tasks_the_script_says_in_one_line_what_it_needs(tmp_path):
    copy_to(tmp_path, "grpo_sg.py")
    done = run_in(tmp_path, "grpo_sg.py")
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: the command line needs tasks.py next to grpo_sg.py")


def test_an_installed_file_finds_its_neighbors_from_any_folder(tmp_path):
    """As after pip install -e: the module is found, its folder is not on sys.path."""
    done = run_in(tmp_path, "-c", "import importlib.util as u, sys; "
                  f"spec = u.spec_from_file_location('grpo_sg', {str(ROOT / 'grpo_sg.py')!r}); "
                  "grpo_sg = sys.modules['grpo_sg'] = u.module_from_spec(spec); "
                  "spec.loader.exec_module(grpo_sg); grpo_sg.main(['--task', 'chess'])")
    assert "--task chess: give one of kk, math" in done.stderr
