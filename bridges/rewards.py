"""The tasks of grpo_sg.py for other engines: rows to train on, and the reward of a completion.

Answers travel as JSON, since a column of a table has one type. For verl, name this file and the function
compute_score in its reward.custom_reward_function; for TRL, see trl_train.py.
"""
import json

import grpo_sg
import tasks

VERIFIERS = {"kk": tasks.verify_kk, "math": tasks.verify_math, "qa": tasks.verify_qa}


def messages(task, problem):
    return [{"role": "system", "content": task.system}, {"role": "user", "content": problem.question}]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's reward function. data_source: kk, math or qa; ground_truth: the answer as JSON.

    verl hands over the text without special tokens, so that a completion that was cut off cannot be told
    from one that ended: it is badly formed only if its text is.
    """
    verdict = VERIFIERS[data_source](solution_str, json.loads(ground_truth))
    return {"score": grpo_sg.reward(verdict), "accuracy": float(all(verdict)),
            "format_rate": float(verdict.formatted)}


def trl_reward(task, tokenizer):
    """TRL's reward function for a task with one turn. It reads the sampled ids: as in grpo_sg.py a
    completion without its end token was cut off, and is badly formed whatever its text."""
    if task.reward:
        raise SystemExit(f"error: --task {task.name} has a reward of its own, which TRL is not given: "
                         "add it in bridges/rewards.py")

    def reward(completion_ids, answer, **_):
        rewards = []
        for ids, gold in zip(completion_ids, answer):
            ended = ids[-1] == tokenizer.eos_token_id
            verdict = task.verify(tokenizer.decode(ids[:-1] if ended else ids), json.loads(gold))
            rewards.append(grpo_sg.reward(verdict._replace(formatted=verdict.formatted and ended)))
        return rewards
    return reward
