"""Test tiny.py, the tiny models, their training and fine-tuning of another model, and the errors of smollm.py."""
import contextlib
import json
import os
import pathlib
import re

import pytest
import torch
from transformers import AutoTokenizer

import grpo_sg
import tasks
from support import smollm, tiny
from test_grpo_sg import CHAT, build_model, byte_tokenizer


@pytest.mark.parametrize("name, accuracy", [("kk", 0.530), ("math", 0.555)])  # see tiny.py
def test_a_pretrained_model_matches_the_code(name, accuracy):
    cfg = grpo_sg.read_settings(["--task", name, "--train_problems", "200"])  # they have all words
    task = tasks.load_task(name)[0](cfg)
    made, words = tiny.tiny_model(task)
    model, tokenizer = grpo_sg.load_model(cfg.model)
    assert tokenizer.get_vocab() == words.get_vocab()
    for problem in task.test:
        for text in (problem.question, problem.solution, problem.shortcut):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(text)["input_ids"] == AutoTokenizer.from_pretrained(cfg.model)(text)["input_ids"]
    assert tokenizer(text)["input_ids"] == words(text)["input_ids"]
    shapes = [{key: p.shape for key, p in each.state_dict().items()} for each in (made, model)]
    assert shapes[0] == shapes[1] and type(made) is type(model)
    policy = grpo_sg.Policy(model.eval(), tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    task = tasks.encode_problems(task, tokenizer, policy.stop_ids, model.config, cfg)
    row, _ = grpo_sg.evaluate(policy, task, task.test, cfg)
    # On another processor, rounding may change a token or two.
    assert row["eval/accuracy"] == pytest.approx(accuracy, abs=0.02)


SCRIPT = """
import tasks
def verify(response, answer):
    return tasks.Verdict(response == answer, len(response) == 3)
def make_task(cfg):
    words = open(cfg.data).read().split()
    problems = [tasks.Problem(word, word[::-1], solution=word[::-1]) for word in words]
    return tasks.Task("short", "", problems, problems, problems, verify, 0.0, tokens=".", warmup=80)
SETTINGS = {"data": "words.txt", "group_size": 6, "prompts": 2, "steps": 30}
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.py").write_text(SCRIPT)
    (tmp_path / "words.txt").write_text("abc bca cab")
    return "short.py"


def test_the_tiny_model_of_a_script_has_its_settings_and_works_from_any_folder(script, tmp_path, monkeypatch, capsys):
    tiny.main([script, "--out", "model", "--group_size", "8", "--seed", "3"])
    assert capsys.readouterr().out.endswith(f"python grpo_sg.py --task {script} --model model\n")
    assert "seed" not in json.loads((tmp_path / "model" / "settings.json").read_text())  # it is of this training
    monkeypatch.chdir(tmp_path.parent)
    flags = ["--model", f"{tmp_path}/model", "--data", f"{tmp_path}/words.txt", "--eval_only"]
    with pytest.raises(SystemExit, match=f"--task {tmp_path}/short.py"):
        grpo_sg.read_settings(flags)  # a model's folder chooses no file that is run
    cfg = grpo_sg.read_settings([*flags, "--task", f"{tmp_path}/short.py"])
    assert (cfg.group_size, cfg.prompts, cfg.steps) == (8, 2, 30)  # flags, then the file's, then TINY's
    assert (cfg.lr, cfg.max_new_tokens, cfg.system) == (2e-4, 48, "none")
    policy, task = grpo_sg.load(cfg)
    row, _ = grpo_sg.evaluate(policy, task, task.test, cfg)
    assert row["eval/accuracy"] == 1


@pytest.mark.parametrize("name, made_for", [("kk.py", "kk"), ("short.py", __file__)])
def test_a_tiny_model_is_replaced_by_that_of_its_own_task_only(name, made_for, script, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "PRETRAINED", tmp_path)
    (tmp_path / name).write_text(SCRIPT)
    saved = tmp_path / name[:-3] / "settings.json"
    saved.parent.mkdir()
    for made in (name, str(tmp_path / name), "gone.py"):  # named by its path, or moved
        saved.write_text(json.dumps({"task": made}))
        tiny.main([name, "--steps", "1"])
    saved.write_text(json.dumps({"task": made_for}))
    with pytest.raises(SystemExit, match=f"is the tiny model of {made_for}: give {name} another name"):
        tiny.main([name, "--steps", "1"])
    assert json.loads(saved.read_text()) == {"task": made_for}


def test_a_model_folder_is_written_whole_or_not_at_all(script, tmp_path, monkeypatch):
    """A killed save leaves the old model, and the next one is not disturbed."""
    monkeypatch.setattr(tiny, "PRETRAINED", tmp_path)
    write, folder = pathlib.Path.write_text, tmp_path / "short"

    def die(path, *_):
        raise KeyboardInterrupt
    for whole in (False, True):
        monkeypatch.setattr(pathlib.Path, "write_text", write if whole else die)
        with contextlib.nullcontext() if whole else pytest.raises(KeyboardInterrupt):
            tiny.main([script, "--steps", "1"])
        assert folder.exists() == whole
    (folder / "old").touch()
    tiny.main([script, "--steps", "1"])
    assert not (folder / "old").exists() and (folder / "settings.json").exists()
    assert sorted(os.listdir(tmp_path)) == ["short", "short.py", "words.txt"]
    with pytest.raises(SystemExit, match="^error: --out short exists: name a new folder"):
        tiny.main([script, "--out", "short"])


def test_a_run_of_puzzles_makes_no_more_of_them_than_it_draws(tmp_path, monkeypatch):
    """The tiny model also learns shortcuts. A cold start keeps its settings, and has a folder of its own."""
    monkeypatch.setattr(tiny, "PUZZLES_OF_A_RUN", 30)
    monkeypatch.setattr(tiny, "PRETRAINED", tmp_path)
    monkeypatch.setattr(tiny, "fine_tune", lambda *given, **recipe: recipes.append(recipe))
    recipes = []
    cold = f"--train_problems 40 --model {tmp_path}/kk --system none --brief --max_new_tokens 48"
    for flags, folder, kept in (("--train_problems 40", "kk", 30), ("--train_problems 20 --steps 7", "kk", 20),
                                (cold, "kk-kk", 40)):
        tiny.main(["kk", "--eval_problems", "8", *flags.split()])
        settings = json.loads((tmp_path / folder / "settings.json").read_text())
        assert settings["train_problems"] == kept
    assert [(each["steps"], each["batch"], each["rise"], each["shortcuts"]) for each in recipes] == [
        (500, 64, 50, 0.6), (7, 64, 50, 0.6), (60, 16, 6, 0.0)]


def test_equal_seeds_make_equal_models(script, tmp_path):
    states = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        tiny.main([script, "--out", name, "--seed", seed, "--steps", "2"])
        states.append((tmp_path / name / "model.safetensors").read_bytes())
    assert states[0] == states[1] != states[2]


def test_a_model_is_fine_tuned_on_solutions_after_its_own_template(tmp_path, capsys, monkeypatch):
    """A cold start: its folder has the settings for RL. The texts end where its turn ends."""
    add_gradient, trained_on = tiny.add_gradient, []

    def watch(model, scripts, cfg):
        trained_on.extend(scripts)
        return add_gradient(model, scripts, cfg)
    monkeypatch.setattr(tiny, "add_gradient", watch)
    rates = []

    class Optimizer(torch.optim.AdamW):
        def step(self):
            rates.append(self.param_groups[0]["lr"])
            super().step()
    monkeypatch.setattr(torch.optim, "AdamW", Optimizer)
    start = tmp_path / "start"
    build_model(vocab_size=300, tie_word_embeddings=True).save_pretrained(start)
    byte_tokenizer(CHAT).save_pretrained(start)
    flags = "--brief --people 2 --train_problems 40 --eval_problems 8 --max_new_tokens 200"
    tiny.main(["kk", "--model", str(start), "--out", str(tmp_path / "cold"), "--steps", "20", "--batch", "4",
               "--lr", "3e-3", *flags.split()])
    losses = re.findall("loss ([0-9.]+)", capsys.readouterr().out)
    assert float(losses[-1]) < 0.7 * float(losses[0])
    saved = json.loads((tmp_path / "cold" / "settings.json").read_text())
    assert saved == {"task": "kk", "brief": True, "people": [2], "train_problems": 40, "eval_problems": 8,
                     "max_new_tokens": 200}
    policy, task = grpo_sg.load(grpo_sg.read_settings(["--model", str(tmp_path / "cold")]))
    texts = set()
    for problem in task.train:
        prompt = policy.tokenizer.decode(problem.prompt)
        assert prompt.endswith("<|im_start|>assistant\n<think>")
        texts.add((prompt + problem.solution.removeprefix("<think>") + "<|im_end|>",
                   problem.solution.removeprefix("<think>") + "<|im_end|>"))
    falling = [3e-4 * left for left in range(9, -1, -1)]
    assert rates == pytest.approx([0.0015, *[3e-3] * 9, *falling], abs=1e-9), (
        "it rises for 2 steps of 20, and falls to 0 in the last 10")
    assert len(trained_on) == 80
    for ids, mask in trained_on:
        assert (policy.tokenizer.decode(ids), policy.tokenizer.decode(ids[mask])) in texts


def test_the_loss_is_a_mean_over_tokens_however_a_batch_is_split_to_fit_into_memory():
    model = build_model(vocab_size=50)
    scripts = [(torch.arange(2, 2 + n), torch.arange(n) > 1) for n in (9, 4, 6, 3, 8)]
    gradients = []
    for tokens in (1000, 10):
        loss = tiny.add_gradient(model, list(scripts), grpo_sg.Config(tokens_per_micro_batch=tokens))
        gradients.append([loss, *(p.grad.clone() for p in model.parameters())])
        model.zero_grad()
    for one, other in zip(*gradients):
        assert torch.as_tensor(one).allclose(torch.as_tensor(other), atol=1e-6)
    logps = [grpo_sg.token_logps(model, ids[None], mask[None])[0][mask] for ids, mask in scripts]
    assert gradients[0][0] == pytest.approx(-torch.cat(logps).mean().item(), abs=1e-5)


@pytest.mark.parametrize("old, new, flags, message", [
    ("", "", "--max_new_tokens 3", "--max_new_tokens 3 cuts off most texts, which have up to 3 tokens"),
    ("solution=word[::-1]", "", "", "0 of 3 training problems have a solution"),
    ('"", problems,', '"", [],', "", "0 of 0 training problems have a solution: give problems to train on"),
    ("", "", "--model nowhere", "cannot load the model nowhere: "),
    ("warmup=80", "shortcuts=0.5", "", "has shortcuts 0.5, but no problem with a shortcut")])
def test_a_mistake_is_one_line(old, new, flags, message, script, tmp_path):
    (tmp_path / script).write_text(SCRIPT.replace(old, new))
    with pytest.raises(SystemExit, match=message) as error:
        tiny.main([script, "--out", "model", *flags.split()])
    assert "\n" not in str(error.value)


# ---- smollm.py, which makes a real model's folder ----

@pytest.mark.parametrize("folder, missing, words", [
    ("", [], "exists already: name another folder"), ("new", ["gguf", "accelerate"], "pip install gguf accelerate")])
def test_an_existing_folder_and_missing_packages_are_told_before_the_download(
        folder, missing, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm, "missing_packages", lambda: missing)
    monkeypatch.setattr(smollm, "download", lambda folder: pytest.fail("it began to download"))
    monkeypatch.setattr("sys.argv", ["smollm", str(tmp_path / folder)])
    with pytest.raises(SystemExit):
        smollm.main()
    assert words in capsys.readouterr().err.splitlines()[-1] and list(tmp_path.iterdir()) == []
