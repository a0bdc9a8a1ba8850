"""Test the layout: what can be copied alone, what each folder adds, and that no module imports
upward."""
import ast
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from support import cli, program
from tasks import UserError

ROOT = pathlib.Path(__file__).parents[1]
FIVE = ("grpo_sg.py", "tasks.py", "test_grpo_sg.py", "requirements.txt", "README.md")

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
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
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
    assert "validation after step 10: accuracy" in done.stdout


@pytest.mark.parametrize("folders", [[], ["support"]])
def test_without_tasks_the_script_says_in_one_line_what_it_needs(folders, tmp_path):
    copy_to(tmp_path, "grpo_sg.py", *folders)
    done = run_in(tmp_path, "grpo_sg.py")
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: the command line needs tasks.py next to grpo_sg.py")


def test_an_installed_file_finds_its_neighbors_from_any_folder(tmp_path):
    """As after pip install -e: the module is found, its folder is not on sys.path."""
    done = run_in(tmp_path, "-c", "import importlib.util as u, sys; "
                  f"spec = u.spec_from_file_location('grpo_sg', {str(ROOT / 'grpo_sg.py')!r}); "
                  "grpo_sg = sys.modules['grpo_sg'] = u.module_from_spec(spec); "
                  "spec.loader.exec_module(grpo_sg); grpo_sg.main(['--task', 'chess'])")
    assert "there is no --task chess: give one of kk, math" in done.stderr


# ---- The five files, and what verify/, support/ and all folders add ----

COMMAND = ["grpo_sg.py", "--model", "model", "--brief", "--people", "3", *(
    "--steps 1 --prompts 4 --group_size 4 --train_problems 50 --eval_problems 6 "
    "--eval_samples 2 --max_new_tokens 48 --temperature 1 --lr 2e-4 --out run").split()]
SETUPS = {  # folders -> (what `python grpo_sg.py` without flags says, what --task qa says)
    "": ("name a model with --model", "there is no --task qa"),
    "verify": ("name a model with --model", "there is no --task qa"),
    "verify support": ("starting from the pretrained tiny model",
                       "--task qa needs the folder extras/search/, which is missing")}


@pytest.mark.release
@pytest.mark.parametrize("folders", SETUPS)
def test_what_a_user_can_do_with_each_set_of_folders(folders, tmp_path):
    without_model, qa = SETUPS[folders]
    copy_to(tmp_path, *FIVE, *folders.split())
    shutil.copytree(ROOT / "support" / "pretrained" / "kk", tmp_path / "model")
    done = run_in(tmp_path, *COMMAND)
    assert "test after training: accuracy" in done.stdout, done.stderr
    assert (tmp_path / "run" / "checkpoint" / "model.safetensors").exists()
    done = run_in(tmp_path, *COMMAND, "--out", "math", "--task", "math", "--data", "math.jsonl",
                  "--eval_data", "math.jsonl")
    assert "error: " in done.stderr and "math.jsonl" in done.stderr and "Traceback" not in done.stderr
    done = run_in(tmp_path, "grpo_sg.py", "--steps", "1", "--train_problems", "20000",
                  "--eval_problems", "8", "--prompts", "2", "--out", "default")
    assert without_model in done.stdout + done.stderr
    done = run_in(tmp_path, "grpo_sg.py", "--model", "model", "--task", "qa")
    assert qa in done.stderr and "Traceback" not in done.stderr
    done = run_in(tmp_path, "-c", r"import tasks; print(tasks.verify_math(r'\boxed{2\sqrt2}', r'\sqrt8'))")
    assert f"correct={'verify' in folders}" in done.stdout
    done = run_in(tmp_path, "-m", "pytest", "-q", "-x", "test_grpo_sg.py", "-k", "not loops")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("flags, message", [
    ("--task qa", "--task qa needs the folder extras/search/, which is missing"),
    ("--offload", "--offload needs the folder extras/gpu/"),
    ("--sampler graph", "--sampler needs the folder extras/gpu/"),
    ("--retriever http://x", "--retriever needs the folder extras/search/")])
def test_a_flag_or_task_that_needs_a_missing_folder_is_refused_in_one_line(flags, message, tmp_path, monkeypatch):
    for module in (program, cli):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.delitem(cli.checks.tasks.TASKS, "qa", raising=False)
    with pytest.raises(UserError, match=message):
        cli.parse(flags.split())
    assert "--offload" not in cli.advise_on_memory()


# ---- No module imports upward ----

# A module may import the modules on the lines above its own.
ORDER = """
verify.math_equal
tasks
grpo_sg
support.program
support.data support.tools support.models support.page support.advice
support.tiny support.run
support.checks
support.cli
support.ask
"""
# tasks.py uses verify/ if it is there; grpo_sg.py imports tasks and support.cli inside functions.
EXCEPTIONS = {"grpo_sg": {"tasks", "support.cli", "grpo_sg"}, "tasks": {"verify.math_equal"}}
TOPS = ("verify", "support", "tasks", "grpo_sg", "lesson", "extras", "experiments")


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


def test_no_module_imports_upward():
    lines = [line.split() for line in ORDER.strip().splitlines()]
    floor = {name: i for i, names in enumerate(lines) for name in names}
    files = [ROOT / "tasks.py", ROOT / "grpo_sg.py", *(ROOT / "support").glob("*.py"),
             *(ROOT / "verify").glob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    core = {name: path for name, path in names.items() if ".test_" not in name}
    assert core.keys() == floor.keys()
    for name, path in core.items():
        found = imports_of(path)
        if name in EXCEPTIONS:
            assert found == EXCEPTIONS[name]
        else:
            assert all(floor.get(other, 99) < floor[name] for other in found), (name, found)


@pytest.mark.parametrize("folder", ["extras", "lesson"])
def test_an_optional_folder_imports_only_the_core_and_itself(folder):
    """Only experiments/ may import other optional folders."""
    allowed = ("verify", "support", "tasks", "grpo_sg", folder)
    for path in (ROOT / folder).rglob("*.py"):
        if not path.name.startswith("test_"):
            for other in imports_of(path):
                assert other.split(".")[0] in allowed, f"{path.relative_to(ROOT)} imports {other}"
