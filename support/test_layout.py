"""Test the layout: grpo_sg.py works when copied alone, and no module imports upward."""
import ast
import os
import shutil
import subprocess
import sys

import pytest

import tasks
from conftest import ROOT
from support import cli
from support.program import UserError

# ---- grpo_sg.py without the project ----

# A random Qwen2 of two layers, a tokenizer with a word for each token, and a task: answer a
# question with one of three words.
ALONE = '''
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("support", "tasks", "verify", "extras", "conftest"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refuse())
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
                       verify=verify, reward=reward, observe=None, stop_text="", max_turns=0)
cfg = grpo_sg.Config(steps=25, prompts=3, group_size=16, lr=5e-3, temperature=1.0,
                     max_new_tokens=6)
rows = grpo_sg.train(policy, task, cfg)
row, greedy = grpo_sg.evaluate(policy, task, problems, cfg, samples=4)
print(len(rows), rows[0]["reward"], rows[-1]["reward"], row["eval/avg@4"], len(greedy))
grpo_sg.main([])
'''


def run_alone(folder, *command):
    shutil.copy(ROOT / "grpo_sg.py", folder)
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=120)


def assert_needs_project(done):
    """Assert that the process ended because the command line needs the whole project."""
    *_, line = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("the command line needs the whole project"), done.stderr


def test_the_file_alone_trains_a_toy_policy_but_has_no_command_line(tmp_path):
    done = run_alone(tmp_path, "-c", ALONE)
    assert_needs_project(done)
    *progress, last = done.stdout.splitlines()
    steps, before, after, accuracy, problems = map(float, last.split())
    assert (steps, problems) == (25, 3)
    assert before < 0.4 and after > 0.8 and accuracy > 0.8
    assert progress[0].startswith("step 10: valid accuracy")


def test_the_file_alone_as_a_script_says_in_one_line_what_it_needs(tmp_path):
    done = run_alone(tmp_path, "grpo_sg.py")
    assert_needs_project(done)
    assert done.stdout == "" and done.stderr.count("\n") == 1


# ---- Optional folders ----

@pytest.mark.parametrize("flags, message", [
    ("--task qa", "--task qa needs the folder extras/search/, which is missing"),
    ("--offload", "--offload needs the folder extras/gpu/"),
    ("--retriever http://x", "--retriever needs the folder extras/search/")])
def test_a_flag_or_task_that_needs_a_missing_folder_is_refused_in_one_line(flags, message, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    monkeypatch.delitem(tasks.TASKS, "qa", raising=False)
    with pytest.raises(UserError, match=message):
        cli.parse(flags.split())
    assert "--offload" not in cli.advise_on_memory()


# ---- No module imports upward ----

# A module may import the modules on the lines above its own; one with a + may also import
# grpo_sg.
ORDER = """
verify.text verify.final_answer verify.math_equal support.program
support.puzzles support.page
support.data support.models+
tasks
support.run support.tiny+
support.cli+
"""
# Allowed on the same line.
WITHIN = {("verify.final_answer", "verify.text"), ("verify.math_equal", "verify.text")}
# grpo_sg.py imports the project when it is started as a script, and in main().
EXCEPTIONS = {("grpo_sg", "support.program"), ("grpo_sg", "support.cli")}
TOPS = ("verify", "support", "tasks", "grpo_sg", "lesson", "extras", "experiments", "conftest")


def imports_of(path):
    """Return the modules of the project that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / f"{inner.replace('.', '/')}.py").exists()
                found.add(inner if is_module else node.module)
    return {name for name in found if name.split(".")[0] in TOPS}


def test_no_module_of_the_core_imports_upward():
    lines = [line.split() for line in ORDER.strip().splitlines()]
    floor = {name.rstrip("+"): i for i, names in enumerate(lines) for name in names}
    may_import_it = {name.rstrip("+") for names in lines for name in names if name.endswith("+")}
    files = [ROOT / "tasks.py", *(ROOT / "support").glob("*.py"), *(ROOT / "verify").glob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    core = {name: path for name, path in names.items() if ".test_" not in name}
    assert core.keys() == floor.keys()
    for name, path in core.items():
        for other in imports_of(path):
            if other == "grpo_sg":
                assert name in may_import_it, f"{name} imports grpo_sg"
            elif (name, other) not in WITHIN:
                assert floor.get(other, 99) < floor[name], f"{name} imports {other}"
    assert imports_of(ROOT / "grpo_sg.py") == {other for _, other in EXCEPTIONS}


@pytest.mark.parametrize("folder, allowed", [
    ("extras", ("verify", "support", "tasks", "grpo_sg", "extras")),
    ("lesson", ("verify", "support", "tasks", "grpo_sg", "lesson"))])
def test_an_optional_folder_imports_only_the_core_and_itself(folder, allowed):
    """Only experiments/ may import other optional folders."""
    for path in (ROOT / folder).rglob("*.py"):
        if not path.name.startswith("test_"):
            for other in imports_of(path):
                assert other.split(".")[0] in allowed, f"{path.relative_to(ROOT)} imports {other}"


@pytest.mark.parametrize("command", [["grpo_sg.py"], ["-m", "support.cli"]])
def test_memory_allocation_is_set_before_torch_is_imported(command, tmp_path):
    (tmp_path / "torch.py").write_text(
        "import os; os.write(1, os.environ.get('PYTORCH_ALLOC_CONF', 'unset').encode()); os._exit(0)")
    environment = {key: value for key, value in os.environ.items() if "ALLOC_CONF" not in key}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True,
                          env={**environment, "PYTHONPATH": str(tmp_path)})
    assert done.stdout == "expandable_segments:True"
