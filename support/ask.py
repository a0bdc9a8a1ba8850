"""Ask a trained model a question: it answers with the settings of its run, by greedy decoding.

    python -m support.ask runs/NAME/checkpoint "Ada: Amir knight. Amir: Ada knave."

For another model, name its task: add --task math. Every flag of grpo_sg.py is allowed.
"""
import argparse

import grpo_sg  # before torch: it configures PyTorch's allocator

from support import cli
from support.program import one_line_errors
import tasks
from tasks import UserError


def ask(model, question, flags=()):
    """Return what the model writes, with a tool's answers."""
    cfg = cli.parse(["--model", model, "--eval_only", *flags])
    policy, task, _ = cli.load(cfg)
    problem = task.test[0]._replace(question=question)  # the verdict on the answer is not shown
    task = task._replace(train=[problem], valid=[problem], test=[problem])
    task = tasks.encode_problems(task, policy, cfg)
    if not task.test:
        raise UserError("the question does not fit into the model's context: shorten it")
    completion, = grpo_sg.rollout(policy, task, task.test, cfg, n=1, temperature=0, seed=0)
    return completion.transcript


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        prog="python -m support.ask", usage="%(prog)s MODEL QUESTION [--setting value ...]")
    parser.add_argument("model", metavar="MODEL", help="a run's checkpoint, a folder or a hub name")
    parser.add_argument("question", metavar="QUESTION")
    known, flags = parser.parse_known_args(argv)
    with one_line_errors(cli.advise_on_memory()):
        print(ask(known.model, known.question, flags))


if __name__ == "__main__":
    main()
