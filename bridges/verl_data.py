"""A task's problems as the parquet files that verl reads, for training and for validation:

    python bridges/verl_data.py kk kk.parquet kk_test.parquet

After the files, any flag of grpo_sg.py that chooses problems, such as --data gsm8k or --people 3 4.
"""
import json
import os
import sys

import datasets

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import grpo_sg  # noqa: E402
import tasks  # noqa: E402
from bridges import rewards  # noqa: E402


def main(name, train, test, *flags):
    cfg = grpo_sg.parse(["--model", "of verl", "--task", name, *flags])
    task = tasks.TASKS[name](cfg)
    for path, problems in ((train, task.train), (test, task.valid)):
        datasets.Dataset.from_list([
            {"data_source": name, "prompt": rewards.messages(task, problem), "extra_info": {"index": i},
             "reward_model": {"style": "rule", "ground_truth": json.dumps(problem.answer)}}
            for i, problem in enumerate(problems)]).to_parquet(path)
        print(f"{path}: {len(problems)} problems")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
