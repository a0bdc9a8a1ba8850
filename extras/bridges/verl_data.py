"""Write a task's problems as the parquet files that verl trains and validates on:

    python -m extras.bridges.verl_data train.parquet valid.parquet \
        --task kk --model Qwen/Qwen2.5-0.5B

After the files, it takes those flags of grpo_sg.py that choose problems, prompts and turns."""
import json
import os
import sys

import datasets

import tasks
from support import checks, cli, models
from tasks import UserError

# The agent loop reads these settings from the rows; verl has its own flags for the others.
KNOWN = ("model", "task", "data", "eval_data", "people", "train_problems", "eval_problems",
         "max_turns", "retriever", "chat_template_kwargs", "max_new_tokens", "seed")


def parse(argv):
    """Return the settings. Raises UserError for flags that verl would ignore."""
    cfg = cli.parse(argv)
    flags = [word.split("=")[0] for word in argv if word.startswith("--")]
    refused = [flag for flag in flags if flag[2:].replace("-", "_") not in KNOWN]
    if refused:
        raise UserError(f"{', '.join(refused)} cannot be given here: set verl's own "
                        "settings, as in extras/bridges/README.md")
    if not cfg.model:
        raise UserError("--model is needed: its prompts and their lengths depend on it")
    return cfg


def encode(tokenizer, task, problem, cfg):
    """Return the problem with its encoded prompt, like tasks.encode_problems."""
    (prompt, opening), = tasks.encode_prompts(tokenizer, task, [problem.question],
                                                cfg.chat_template_kwargs)
    return problem._replace(prompt=prompt, opening=opening)


def main(train, valid, *argv):
    cfg = parse(argv)
    task = checks.make_task(cfg)
    try:
        tokenizer = models.read_tokenizer(cfg.model, os.path.isdir(cfg.model))
    except Exception as error:  # no such name, no access, no network
        raise UserError(f"cannot load a tokenizer from --model {cfg.model}: "
                        f"{models.diagnose(cfg.model, error)}") from None
    longest = 0
    for path, split in ((train, "train"), (valid, "valid")):
        rows = []
        for i, problem in enumerate(getattr(task, split)):
            longest = max(longest, len(encode(tokenizer, task, problem, cfg).prompt))
            # verl requires a string here; the agent loop builds the real prompt.
            rows.append({
                "data_source": task.name,
                "prompt": [{"role": "user", "content": problem.question}],
                "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
                "extra_info": {"index": i, "split": split, "settings": json.dumps(vars(cfg))}})
        datasets.Dataset.from_list(rows).to_parquet(path)
        print(f"{path}: {len(rows)} problems")
    most = task.write.longest(cfg) if task.write else cfg.max_new_tokens
    print(f"pass to verl (or more): data.max_prompt_length={longest} "
          f"data.max_response_length={most}")


if __name__ == "__main__":
    files = [word for word in sys.argv[1:3] if not word.startswith("-")]
    if len(files) < 2:
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
