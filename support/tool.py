"""A tool that a policy calls in the middle of a completion, which then goes on with the tool's answer in it.

A task with a tool has `stop_text`, which ends a call of it, and `observe`, from the policy's text so far,
which ends with a call, to the text of the answer.
"""
import torch


def turns(task, text):
    """A scripted completion cut after each call of the task's tool."""
    *calls, last = text.split(task.stop_text) if task.observe else [text]
    return [*(call + task.stop_text for call in calls), last]


def observation(tokenizer, task, text, most=500):
    """Token ids of the tool's answer to the text: at most `most`, and after these the last of several lines,
    so that </information> is never cut off."""
    answer = task.observe(text)
    end = answer.rfind("\n") if "\n" in answer else len(answer)
    body = tokenizer(answer[:end], add_special_tokens=False)["input_ids"]
    last = tokenizer(answer[end:], add_special_tokens=False)["input_ids"]
    return body[:most] + last


def call_finder(tokenizer, task):
    """calls_tool(drawn): of token ids (B, t), which rows (B,) have just called the task's tool; None where
    it has none. By the text, as a call ends in many spellings, also in the middle of a token."""
    def calls_tool(drawn):
        tails = drawn[:, -len(task.stop_text.encode()):].tolist()  # a token is a byte or more
        texts = tokenizer.batch_decode(tails)
        return torch.tensor([task.stop_text in text for text in texts], device=drawn.device)
    return calls_tool if task.observe else None


def use_tool(completions, tokenizer, task, max_turns, draw, calls_tool):
    """Let the tool answer where a completion ended with a call of it, and the completion go on: max_turns
    times at most, then calls are not answered any more. The answers get mask False, as the policy did not
    write them. draw(contexts, n, pauses): token ids of n completions of each context."""
    unfinished = completions
    drawn = [c.tokens for c in completions]
    for turns_left in range(max_turns - 1, -1, -1):
        unfinished = [c for c, tokens in zip(unfinished, drawn) if calls_tool(torch.tensor([tokens]))]
        if not unfinished:
            return
        for c in unfinished:
            answer = observation(tokenizer, task, tokenizer.decode(c.own_tokens()))
            c.tokens = c.tokens + answer
            c.mask = c.mask + [False] * len(answer)
            c.tool_calls += 1
        drawn = draw([c.prompt + c.tokens for c in unfinished], 1, calls_tool if turns_left else None)
        for c, tokens in zip(unfinished, drawn):
            c.tokens = c.tokens + tokens
            c.mask = c.mask + [True] * len(tokens)
