"""Train the pretrained tiny model of a task again, with seed 0.

    python -m experiments.pretrain kk math qa     writes the folders in tiny.PRETRAINED
"""
import argparse
import json
import os
import subprocess

import grpo_sg
import tasks
import torch
import transformers
from support import cli, program, tiny

# The settings that decide what a warm-up learns from, except for the seed. kk also reads these.
MADE_WITH = ("task", "data", "train_problems")
OF_PUZZLES = ("people", "brief")


def pretrain(name):
    """Write the pretrained model of a task, with a record of how it was made."""
    cfg = cli.parse(["--task", name, "--warm_up"])
    policy, task, _ = cli.load(cfg)
    tiny.warm_up(policy, task, cfg)
    folder = tiny.PRETRAINED[tasks.TASKS[name]]
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    names = [*MADE_WITH, *(OF_PUZZLES if name == "kk" else ())]
    row, _ = grpo_sg.evaluate(policy, task, task.test, cfg, samples=4)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=program.ROOT,
                            capture_output=True, text=True).stdout.strip()
    about = {"command": f"python -m experiments.pretrain {name}", "commit": commit,
             "torch": torch.__version__, "transformers": transformers.__version__,
             "settings": {key: getattr(cfg, key) for key in names},
             "test": {key: row[key] for key in ("eval/accuracy", "eval/avg@4")}}
    with open(os.path.join(folder, "about.json"), "w") as file:
        json.dump(about, file, indent=1)
    print(f"{folder}: accuracy {row['eval/accuracy']:.3f}, avg@4 {row['eval/avg@4']:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="train the pretrained tiny models again")
    parser.add_argument("tasks", nargs="+", choices=["kk", "math", "qa"])
    names = parser.parse_args().tasks
    with program.one_line_errors(cli.advise_on_memory()):
        for name in names:
            pretrain(name)
