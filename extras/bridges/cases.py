"""Build ten scripted completions of a problem and grpo_sg.py's rollout of them, for the tests of
both bridges."""
import dataclasses
import os
import subprocess
import sys

import tokenizers
import transformers

import grpo_sg
import tasks
from support import checks, cli, models, program

# The last one is only in generation_config.
ENDS = ("<|im_end|>", "<|endoftext|>", "<end_of_turn>")
FLAGS = ("--train_problems 20 --eval_problems 5 --prompts 2 --group_size 10 --updates 1 "
         "--steps 1 --max_new_tokens 300 --temperature 0.7 --lr 0.1").split()
TEXTS = {  # task -> (a right response, with slots for the thoughts and the gold; a wrong one)
    "kk": ("{} </think> <answer> {} </answer>",
           "Hm. </think> <answer> Nobody is a knight </answer>"),
    "math": ("{} </think> \\boxed{{{}}}", "Hm. </think> \\boxed{{-7}}"),
    "qa": ("{} </think> <answer> {} </answer>", "Hm. </think> <answer> Nowhere </answer>")}


def save_model(folder, opened):
    """Save a small untrained model whose tokens are bytes, with three stop tokens. opened:
    True if its chat template opens the thoughts, like DeepSeek-R1's."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {c: i for i, c in enumerate(alphabet)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    opening = "<think>\n" if opened else ""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=ENDS[0], additional_special_tokens=list(ENDS[1:]),
        chat_template="{% for m in messages %}{{ m.content }}\n{% endfor %}" + opening)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4,
        max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None, pad_token_id=None))
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(ENDS[2])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make(folder, name, opened, *flags):
    """Save a model in the folder and return (cfg, policy, task). name: of the task."""
    save_model(folder, opened)
    cfg = cli.parse(["--model", str(folder), "--task", name, *FLAGS, *flags])
    model, tokenizer = models.load_model(cfg.model)
    policy = grpo_sg.Policy(model, tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    task = checks.guard(checks.make_task(cfg))
    return cfg, policy, tasks.encode_problems(task, policy, cfg)


def script(tokenizer, task, problem, opened):
    """Return ten completions, each a list of turns, which are lists of token ids."""
    right, wrong = TEXTS[task.name]
    gold = problem.answer
    if task.name == "kk":
        gold = ", ".join(f"{name} is a {role}" for name, role in gold.items())
    elif task.name == "qa":
        gold = gold[0]
    # The policy writes <think> unless its prompt has opened the thoughts.
    start = "" if opened or task.opening else "<think>"
    right = start + right.format("Hm.", gold)
    done, never = right + ENDS[0], start + right.partition("</think>")[2]
    completions = [[done], [right + ENDS[1]], [right + ENDS[2]], [right],
                   [start + wrong + ENDS[0]], [right[:-3]], [ENDS[0]],
                   [f"{right} Or not?{ENDS[0]}"], [never + ENDS[0]], [done]]
    if task.write:
        call = "<search> Who? </search>"
        completions[8:] = [[call, done], [call, f"{call} {call}", right]]
    return [[tokenizer(text)["input_ids"] for text in turns] for turns in completions]


REWARDS = {"kk": [3, 3, 3, -3, -0.5, -3, -3, -3, -3, 3],
           "math": [3, 3, 3, -3, -0.5, -3, -3, 3, -3, 3],
           "qa": [3, 3, 3, -3, -0.5, -3, -3, -3, 3, -3]}


def scripted(completions):
    """Return a sampler that returns each row's next turn."""
    left = [list(turns) for turns in completions]

    def sampler(model, prompts, **settings):
        rows = [turns for turns in left if turns]
        assert len(rows) == len(prompts)
        return [turns.pop(0) for turns in rows]
    return sampler


def roll_out(policy, task, cfg, problem, completions):
    """Return grpo_sg.rollout of these completions of a problem."""
    scripting = dataclasses.replace(policy, sampler=scripted(completions))
    return grpo_sg.rollout(scripting, task, [problem], cfg, n=len(completions),
                           temperature=1, seed=0)


def launch(processes, *command):
    """Run python COMMAND in this number of processes, on a CPU. accelerate's --cpu would start
    only one."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": str(program.ROOT)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", processes]
    subprocess.run([*launcher, *command], env=environment, check=True, timeout=3600)
