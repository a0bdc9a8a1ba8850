"""A task's problems as the parquet files that verl reads, for training and for validation:

    python -m bridges.verl_data train.parquet valid.parquet --task kk --model Qwen/Qwen2.5-0.5B

After the files, any flags of grpo_sg.py that choose problems, or say how prompts and turns are made."""
import json
import os
import sys

import datasets

import grpo_sg
import tasks
from support import models, program

# What the agent loop takes from the rows; the other settings are verl's own.
KNOWN = ("max_new_tokens", "seed", *(name for name, field in grpo_sg.Config.__dataclass_fields__.items()
                                     if field.metadata["group"] == "model and data"))


def main(train, valid, *argv):
    given = program.read_flags(grpo_sg.Config, argv, __doc__)
    refused = [f"--{name}" for name in given if name not in KNOWN]
    if refused:
        raise program.UserError(f"{', '.join(refused)} cannot be given here: see the table in bridges/README.md")
    if not given.get("model"):
        raise program.UserError("--model is needed: its prompts and their lengths depend on it")
    cfg = grpo_sg.parse(argv)
    task = tasks.make_task(cfg)
    tokenizer = models.read_tokenizer(cfg.model, os.path.isdir(cfg.model))
    longest = 0
    for path, split in ((train, "train"), (valid, "valid")):
        rows = []
        for i, problem in enumerate(getattr(task, split)):
            longest = max(longest, len(grpo_sg.encode_problem(tokenizer, task, problem, cfg)))
            # verl wants a text as prompt; the agent loop makes the one that the policy reads.
            rows.append({"data_source": task.name, "prompt": [{"role": "user", "content": problem.question}],
                         "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
                         "extra_info": {"index": i, "split": split, "settings": json.dumps(vars(cfg))}})
        datasets.Dataset.from_list(rows).to_parquet(path)
        print(f"{path}: {len(rows)} problems")
    turns = cfg.max_turns if task.observe else 0
    most = (turns + 1) * cfg.max_new_tokens + turns * models.TOOL_TOKENS
    print(f"for verl, or more: data.max_prompt_length={longest} data.max_response_length={most}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    with program.one_line_errors(""):
        main(*sys.argv[1:])
