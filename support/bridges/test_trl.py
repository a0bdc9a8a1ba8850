"""Compare GRPO-SG on TRL with grpo_sg.py and with TRL's own trainer. Skipped without TRL."""
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import grpo_sg
from grpo_sg import grpo_sg_loss, token_weights
from tasks import UserError
from test_grpo_sg import build_model, byte_tokenizer

trl = pytest.importorskip("trl")
import datasets

from support.bridges import trl_train
from support.bridges.trl_grpo_sg import GRPOSGTrainer

ROOT = pathlib.Path(__file__).parents[2]


def save_model(folder, opening=""):
    """Save an untrained model of bytes. opening: what its chat template adds, such as <think>."""
    tokenizer = byte_tokenizer("{% for m in messages %}{{ m.content }}\n{% endfor %}" + opening)
    build_model(vocab_size=len(tokenizer), tie_word_embeddings=True, initializer_range=0.4).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# ---- The loss ----

def roll_out(prompts, trainer):
    """Return completions, the same in any number of processes, each with a token that a tool wrote."""
    rows = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "logprobs": None}
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped).eval()
    for i, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(100 * int(prompt) + i % 4)
        ids, length = [1, 2 + int(prompt)], 3 + i % 4
        rows["prompt_ids"].append(ids)
        rows["completion_ids"] += grpo_sg.sample(
            model, [ids], max_new_tokens=length, stop_ids=[], temperature=0.7, generator=generator)
        rows["env_mask"].append([1, 0, *[1] * (length - 2)])
    model.train()
    return rows


def reward_first_token(completion_ids, **_):
    return [float(ids[0]) for ids in completion_ids]


def make_trainer(folder, kind=GRPOSGTrainer, **settings):
    """Return a trainer of two updates on a rollout of two groups of four."""
    save_model(f"{folder}/model")
    args = trl.GRPOConfig(**{
        "output_dir": f"{folder}/out", "use_cpu": True, "max_steps": 2,
        "generation_batch_size": 8, "num_generations": 4, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "temperature": 0.7, "epsilon_high": 0.24,
        "learning_rate": 0.1, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 1e9,
        "bf16": False, "logging_steps": 2, "save_strategy": "no", "loss_type": "dapo",
        "use_bias_correction_kl": False, "report_to": "none", **settings})
    model, tokenizer = grpo_sg.load_model(f"{folder}/model")
    rows = datasets.Dataset.from_dict({"prompt": ["0", "1"]})
    return kind(model, reward_first_token, args, rows, processing_class=tokenizer, rollout_func=roll_out)


def compute_by_hand(model, inputs, args):
    """Compute the loss with grpo_sg_loss, row by row without padding, and the mean weight."""
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    rows = []
    for prompt, real, completion in zip(inputs["prompt_ids"], inputs["prompt_mask"].bool(), inputs["completion_ids"]):
        ids = torch.cat([prompt[real], completion])[None]
        logits = model(input_ids=ids).logits[0, -len(completion) - 1:-1]
        rows.append((logits / args.temperature).log_softmax(-1).gather(1, completion[:, None])[:, 0])
    logps = torch.stack(rows)
    weights = token_weights(logps)
    loss, _ = grpo_sg_loss(logps, inputs["old_per_token_logps"], inputs["advantages"], mask, weights=weights,
                           ref_logps=inputs.get("ref_per_token_logps"), clip_high=0.24, beta=args.beta,
                           denominator=inputs["num_items_in_batch"] / 2)
    return loss.item(), weights[mask].mean().item()


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_loss_equals_grpo_sg_loss(beta, tmp_path, monkeypatch):
    """Run two updates of two micro-batches on completions with a tool's answers."""
    seen = []
    compute = GRPOSGTrainer._compute_loss

    def compute_and_compare(self, model, inputs):
        loss = compute(self, model, inputs)
        seen.append((loss.item(), *compute_by_hand(model, inputs, self.args)))
        return loss
    monkeypatch.setattr(GRPOSGTrainer, "_compute_loss", compute_and_compare)
    trainer = make_trainer(tmp_path, beta=beta)
    trainer.train()
    assert trainer.state.global_step == 2 and len(seen) == 4
    for theirs, ours, _ in seen:
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-6)
    logged = trainer.state.log_history[0]
    assert logged["weight_mean"] == pytest.approx(sum(w for *_, w in seen) / 4, abs=1e-4)
    assert 1.01 < logged["weight_mean"] < 1.39 and 0 < logged["low_prob_frac"] < 1


def test_with_weights_of_1_it_equals_the_stock_trainer(tmp_path):
    parameters = []
    for kind, weigh in ((trl.GRPOTrainer, None), (GRPOSGTrainer, torch.ones_like), (GRPOSGTrainer, token_weights)):
        trainer = make_trainer(tmp_path, kind)
        trainer.weigh = weigh
        trainer.train()
        parameters.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    stock, ones, weighted = parameters
    assert torch.equal(stock, ones) and not torch.equal(stock, weighted)


def train_among(processes, folder):
    """Take this process's part of an update on the whole rollout. Returns the trainer."""
    trainer = make_trainer(folder, max_steps=1, gradient_accumulation_steps=1, learning_rate=0.01,
                           per_device_train_batch_size=8 // processes)
    trainer.train()
    assert trainer.accelerator.num_processes == processes
    return trainer


def test_two_processes_equal_one(tmp_path):
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
                    __file__, str(tmp_path)], env=environment, check=True, timeout=1800)
    one, two = train_among(1, tmp_path).model, torch.load(tmp_path / "two.pt")
    start, _ = grpo_sg.load_model(tmp_path / "model")
    for name, parameter in one.state_dict().items():
        assert torch.allclose(parameter, two[name], rtol=0, atol=1e-6)
    assert (one.lm_head.weight - start.lm_head.weight).abs().max() > 1e-3  # else nothing was compared


# ---- The script ----

@pytest.mark.parametrize("name, opening, draft", [
    ("kk", "", "<think>Hm. </think> <answer> {} </answer>"), ("math", "<think>\n", "Hm. </think> \\boxed{{{}}}")])
def test_prompts_and_rewards_are_those_of_grpo_sg(name, opening, draft, tmp_path, monkeypatch):
    save_model(tmp_path / "model", opening)
    cfg = grpo_sg.read_settings(["--task", name, "--model", f"{tmp_path}/model", "--out", f"{tmp_path}/out", "--device",
                                 *"cpu --prompts 1 --updates 1 --train_problems 20 --eval_problems 5".split()])
    policy, task = grpo_sg.load(cfg)
    problem = task.train[3]
    answer = problem.answer
    if name == "kk":
        answer = ", ".join(f"{person} is a {role}" for person, role in answer.items())
    draft = draft.removeprefix(problem.opening)
    right, wrong = (draft.format(text) for text in (answer, "Nobody" if name == "kk" else "-7"))
    end = policy.tokenizer.eos_token
    texts = [right + end, right, wrong + end, right[:-3] + end, end, *[right + end] * 3]  # the second is truncated
    trainer = trl_train.make_trainer(cfg)
    asked = []

    def generate(prompt_ids, *_):
        asked.extend(prompt_ids)
        return [trainer.processing_class(text)["input_ids"] for text in texts], None
    trainer.model.train()
    monkeypatch.setattr(trainer, "_generate_single_turn", generate)
    trainer._generate_and_score_completions([trainer.train_dataset[3]] * 8)
    assert asked == [problem.prompt] * 8
    assert list(trainer._logs["rewards"]["grade"]) == [3, -3, -0.5, -3, -3, 3, 3, 3]
    with pytest.raises(UserError, match="retokenization changes a prompt"):
        trl_train.make_dataset(policy.tokenizer, [SimpleNamespace(prompt=[5, 6, 255 + 44])])


def test_grpo_sg_can_test_the_trained_model_and_mistakes_are_one_line(tmp_path):
    """Without --model the tiny model is trained."""
    out = f"{tmp_path}/run"
    flags = "--task math --steps 2 --prompts 4 --train_problems 50 --shaping none --eval_problems 5 --out".split()
    for wrong, words in (("--eval_only", "leave out --resume and --eval_only"), ("--updates=5", "cannot be shared evenly"),
                         ("--task support/search.py --model none", "has a tool")):
        with pytest.raises(SystemExit, match=f"^error: .*{words}"):
            trl_train.main([*flags, out, *wrong.split()])
    trl_train.main([*flags, out])
    cfg = grpo_sg.read_settings(["--eval_only", "--model", out])
    assert (cfg.task, cfg.shaping, cfg.eval_problems) == ("math", "none", 5)
    trained, _ = grpo_sg.load(cfg)
    untrained, _ = grpo_sg.load_model(ROOT / "support" / "pretrained" / "math")
    assert not torch.equal(trained.model.lm_head.weight, untrained.lm_head.weight)


if __name__ == "__main__":
    trainer = train_among(2, f"{sys.argv[1]}/{os.environ['RANK']}")
    if trainer.accelerator.is_main_process:
        torch.save(trainer.model.state_dict(), f"{sys.argv[1]}/two.pt")
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    os._exit(0)  # as trl_train.py does
