"""Let the policy call a tool while it writes: a Tool is the `write` of a tasks.Task."""
import dataclasses
from collections.abc import Callable

import grpo_sg
import torch
import transformers

TOOL_TOKENS = 500  # most tokens of a tool's answer


@dataclasses.dataclass(frozen=True)
class Tool:
    """Write completions in turns. Each of the first max_turns turns may end in a call of the
    tool, which is answered; a call in the last turn is not."""
    # texts that end with a call -> an answer to each
    observe: Callable[[list[str]], list[str]]
    stop_text: str      # ends a call
    max_turns: int = 2  # turns whose calls are answered; one last turn follows

    def __call__(self, policy, completions, cfg, generator, temperature):
        """Write the completions: see grpo_sg.write_completions."""
        call_end = StopText(policy.tokenizer, self.stop_text)
        unfinished = completions
        for turn in range(self.max_turns + 1):
            last_turn = turn == self.max_turns
            drawn = grpo_sg.write_completions(policy, unfinished, cfg, generator, temperature,
                                              None if last_turn else call_end)
            if last_turn:
                break
            unfinished = [c for c, tokens in zip(unfinished, drawn) if call_end.ends(tokens)]
            if not unfinished:
                break
            # All that the policy has written: the tool looks for the call at its end.
            texts = [policy.tokenizer.decode(c.own_tokens()) for c in unfinished]
            for c, answer in zip(unfinished, self.observe(texts), strict=True):
                # The policy did not write the answer and does not learn it.
                c.add(encode_tool_answer(policy.tokenizer, answer), own=False)
                c.tool_calls += 1

    def longest(self, cfg):
        """Return the most tokens that a completion can have."""
        return (self.max_turns + 1) * cfg.max_new_tokens + self.max_turns * TOOL_TOKENS

    def find_calls(self, text):
        """Return the prefixes of a scripted completion that end with a call."""
        parts = text.split(self.stop_text)
        return [self.stop_text.join(parts[:i]) + self.stop_text for i in range(1, len(parts))]


class StopText(transformers.StoppingCriteria):
    """Ends rows of token ids (B, t) whose latest token completes the stop text, in
    whatever way the text is split into tokens. (transformers' StopStringCriteria cannot
    read tokenizers that have only whole words.)"""

    def __init__(self, tokenizer, text):
        self.tokenizer = tokenizer
        self.text = text

    def ends(self, tokens):
        """Return whether this list of token ids ends with the stop text."""
        return self(torch.tensor([tokens])).item()

    def __call__(self, ids, scores=None):
        tails = ids[:, -len(self.text.encode()):].tolist()  # a token is a byte or more
        ended = [self.text in tail for tail in self.tokenizer.batch_decode(tails)]
        return torch.tensor(ended, device=ids.device)


def encode_tool_answer(tokenizer, text, most=TOOL_TOKENS):
    """Return the token ids of a tool's answer, at most `most`. A longer answer is
    shortened before its last line, which is kept, such as </information>. If the text has
    the letters of a special token, such as <|im_end|>, they become ordinary tokens, so a
    tool can neither open nor close a turn. Invalid Unicode characters (lone surrogates)
    become question marks."""
    text = text.encode(errors="replace").decode()
    last_line = text.rstrip("\n").rfind("\n")
    end = last_line if last_line >= 0 else len(text)
    plain = {"add_special_tokens": False, "split_special_tokens": True}
    body = tokenizer(text[:end], **plain)["input_ids"]
    last = tokenizer(text[end:], **plain)["input_ids"][:most]
    return body[:most - len(last)] + last
