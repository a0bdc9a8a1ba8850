"""For the tests of both bridges: ten scripted completions of a problem, and what grpo_sg.py makes of them."""
import tokenizers
import transformers

import grpo_sg
import tasks
from support import models

ENDS = ("<|im_end|>", "<|endoftext|>", "<end_of_turn>")  # the last is an end in generation_config alone
FLAGS = ("--train_problems 20 --eval_problems 5 --prompts 2 --group_size 10 --updates 1 --steps 1 "
         "--max_new_tokens 300 --temperature 0.7 --lr 0.1").split()
TEXTS = {  # of a task: a right response for a gold answer, and a wrong one
    "kk": ("{} </think> <answer> {} </answer>", "Hm. </think> <answer> Nobody is a knight </answer>"),
    "math": ("{} </think> \\boxed{{{}}}", "Hm. </think> \\boxed{{-7}}"),
    "qa": ("{} </think> <answer> {} </answer>", "Hm. </think> <answer> Nowhere </answer>")}


def save_model(folder, opened):
    """A small untrained model whose tokens are bytes, with three stop tokens. opened: whether its chat
    template opens the thoughts, as DeepSeek-R1's does."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    opening = "<think>\n" if opened else ""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=ENDS[0], additional_special_tokens=list(ENDS[1:]),
        chat_template="{% for m in messages %}{{ m.content }}\n{% endfor %}" + opening)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4, max_position_embeddings=8192,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None))
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(ENDS[2])
    models.save_model(folder, model, tokenizer)


def make(folder, name, opened, *flags):
    """(cfg, task, model, tokenizer) of a task, with the model in the folder."""
    save_model(folder, opened)
    cfg = grpo_sg.parse(["--model", str(folder), "--task", name, *FLAGS, *flags])
    return cfg, tasks.make_task(cfg), *models.load_model(cfg.model)


def script(tokenizer, task, problem, opened):
    """Ten completions, each a list of turns, which are lists of token ids."""
    right, wrong = TEXTS[task.name]
    gold = problem.answer
    if task.name == "kk":
        gold = ", ".join(f"{name} is a {role}" for name, role in gold.items())
    elif task.name == "qa":
        gold = gold[0]
    # What the policy writes before the thoughts: nothing, if its prompt has opened them.
    start = "" if opened or task.opening else "<think>"
    right = start + right.format("Hm.", gold)
    done, never = right + ENDS[0], start + right.partition("</think>")[2]
    completions = [[done], [right + ENDS[1]], [right + ENDS[2]], [right], [start + wrong + ENDS[0]], [right[:-3]],
                   [ENDS[0]], [f"{right} Or not?{ENDS[0]}"], [never + ENDS[0]], [done]]
    if task.observe:
        call = "<search> Who? </search>"
        completions[8:] = [[call, done], [call, f"{call} {call}", right]]
    return [[tokenizer(text)["input_ids"] for text in turns] for turns in completions]


REWARDS = {"kk": [3, 3, 3, -3, -0.5, -3, -3, -3, -3, 3], "math": [3, 3, 3, -3, -0.5, -3, -3, 3, -3, 3],
           "qa": [3, 3, 3, -3, -0.5, -3, -3, -3, 3, -3]}


def grade_by_hand(model, tokenizer, task, cfg, problem, turns):
    """A grpo_sg.Completion of these turns, graded."""
    c = grpo_sg.Completion(problem, grpo_sg.encode_problem(tokenizer, task, problem, cfg))
    for i, turn in enumerate(turns):
        c.add(turn, own=True)
        if i + 1 < len(turns):
            answer, = models.call_tool(task, [tokenizer.decode(c.own_tokens())])
            c.add(models.encode_tool_answer(tokenizer, answer), own=False)
            c.tool_calls += 1
    grpo_sg.grade(c, tokenizer, task, models.find_stop_ids(model, tokenizer))
    return c
