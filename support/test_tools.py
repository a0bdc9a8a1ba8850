"""Test tools: their calls, their answers, and whose tokens are trained on."""
import itertools

import pytest
import torch
from tokenizers.processors import TemplateProcessing

import grpo_sg
import tasks
from support import tiny, tools
from support.tools import Tool
from test_grpo_sg import build_model, build_toy, byte_tokenizer, encode, word_tokenizer

STOP = "</search>"


def letters_tokenizer():
    """Build a tokenizer of letters and all parts of "</search>", some with more text after them."""
    parts = {STOP[i:j] for i in range(9) for j in range(i + 1, 10)} | {">\n", "><", "h> ", STOP + "<a"}
    letters = {chr(i) for i in range(32, 127)} | {"\n"}
    return word_tokenizer(["<|im_end|>", "[UNK]", *sorted(letters | parts)], ".|\n")


def count_calls(texts):
    assert not any("<information>" in text for text in texts), "the tool reads its own answers"
    return [f"\n<information>\nabc {text.count(STOP)}\n</information>" for text in texts]


def verify_x(response, gold):
    return tasks.Verdict(response.endswith("<answer>x</answer>"), response.endswith("</answer>"))


@pytest.fixture
def converse(monkeypatch):
    """Return (spell, converse). In converse(scripts), a rollout without a model, row k writes the token
    ids scripts[k][turn] in each turn, and stops where the sampler would."""
    tokenizer = letters_tokenizer()

    def spell(text):
        return tokenizer(text)["input_ids"]

    def converse(scripts, max_turns=2):
        rows, turns = [iter(script) for script in scripts], []

        def scripted(model, prompts, *, max_new_tokens, stop_ids, stopping_criteria, **_):
            written = []
            for prompt in prompts:
                turn = next(rows[k := int(tokenizer.decode(prompt).split("|")[0])])[:max_new_tokens]
                ends = [t for t in range(1, len(turn) + 1) if turn[t - 1] in stop_ids or
                        stopping_criteria and stopping_criteria(torch.tensor([turn[:t]]), None).item()]
                written.append(turn[:ends[0]] if ends else turn)
                turns.append((k, prompt + written[-1]))
            return written
        monkeypatch.setattr(grpo_sg, "sample", scripted)
        problems = [tasks.Problem(f"{k}|", "x", prompt=spell(f"{k}|")) for k in range(len(scripts))]
        task = tasks.Task("calls", "", problems, problems, problems, verify_x, 0.0,
                          write=Tool(count_calls, STOP, max_turns))
        policy = grpo_sg.Policy(build_model(vocab_size=200), tokenizer, {0})
        rolled = grpo_sg.rollout(policy, task, problems, grpo_sg.Config(max_new_tokens=60), n=1, temperature=1.0, seed=0)
        for k, context in turns:  # each turn continues all that was there, the tool's answers as well
            assert (rolled[k].prompt + rolled[k].tokens)[:len(context)] == context
        return rolled
    return spell, converse


def test_a_tool_call_is_recognized_in_every_tokenization(converse):
    """All 256 ways to cut "</search>" into tokens, and some that end inside a token."""
    (spell, converse), word = converse, letters_tokenizer().get_vocab()
    spellings = [[STOP[i:j] for i, j in itertools.pairwise([0, *cuts, 9])]
                 for k in range(9) for cuts in itertools.combinations(range(1, 9), k)]
    spellings += [["</search", ">\n"], ["</", "search", "><"], ["</searc", "h> "], [STOP + "<a"]]
    end = spell("<answer>x</answer>") + [0]
    calls = [spell("<search>b") + [word[part] for part in spelling] for spelling in spellings]
    seen = spell("\n<information>\nabc 1\n</information>")
    completions = converse([[call + spell("never seen"), end] for call in calls])
    for c, call, spelling in zip(completions, calls, spellings, strict=True):
        assert c.tokens == call + seen + end  # as sampled, never decoded and re-tokenized
        assert c.mask == [True] * len(call) + [False] * len(seen) + [True] * len(end)
        assert c.tool_calls == 1 and not c.truncated and c.solved
        assert c.response == f"<search>b{''.join(spelling)}<answer>x</answer>"  # all that the verifier reads
        assert "abc 1" in c.transcript


def test_calls_are_limited_and_a_warm_up_text_has_the_tokens_and_mask_of_a_rollout(converse):
    spell, converse = converse
    call, end = spell("<search>b</search>"), spell("<answer>x</answer>") + [0]
    none, two, three, long = converse([
        [end], [call, call, end], [call, call, call + end], [call, spell("b" * 99)]])
    assert [c.tool_calls for c in (none, two, three, long)] == [0, 2, 2, 1]
    assert all(none.mask) and none.solved and two.solved
    task = tasks.Task("calls", "", [], [], [], verify_x, 0.0, write=Tool(count_calls, STOP))
    text = "<search>b</search><search>b</search><answer>x</answer>"
    ids, mask = tiny.write_script(letters_tokenizer(), task, two.problem, text, 0)
    assert ids.tolist() == two.prompt + two.tokens
    assert mask.tolist() == [False] * len(two.prompt) + two.mask
    assert two.own_tokens() == call + call + end
    assert three.tokens[-len(call + end):] == call + end and all(three.mask[-len(call + end):])
    assert long.truncated and sum(long.mask) == len(call) + 60 and not long.formatted
    closed, = converse([[call + end]], max_turns=0)
    assert closed.tool_calls == 0 and closed.tokens == call + end


def test_a_tools_answer_is_cut_off_before_its_last_line_and_contains_no_special_token():
    """Even if the tool writes <|im_end|>, and the tokenizer begins each text with one."""
    letters = letters_tokenizer()
    for end in ("\n</end>", "\n</end>\n"):
        short = letters(f"\n<information>\nbbbbb{end}")["input_ids"]
        assert tools.encode_tool_answer(letters, f"\n<information>\n{'b' * 99}{end}", len(short)) == short
    assert len(tools.encode_tool_answer(letters, "a\n" + "b" * 99, 5)) == 5  # a long last line
    # A lone surrogate, as a server may send.
    assert tools.encode_tool_answer(letters, "a\ud83d\n") == letters("a?\n")["input_ids"]
    tokenizer = byte_tokenizer(None)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    text = "a <|im_end|>\na <|im_end|> a"
    assert tokenizer.decode(ids := tools.encode_tool_answer(tokenizer, text)) == text
    assert not {0, 1, 2}.intersection(ids) and tokenizer("<|im_end|>")["input_ids"] == [1, 2]


def test_a_rollout_with_a_tool_depends_on_the_seed_and_not_on_how_many_are_sampled_at_once():
    tool = Tool(lambda texts: [f"who {'why ' * len(text.split())}" for text in texts], "maybe", 3)
    policy, task, cfg = build_toy(change={"write": tool})
    rollouts = []
    for cfg.sample_batch, seed in ((64, 1), (16, 1), (1, 1), (64, 2)):
        rolled = grpo_sg.rollout(policy, task, task.train, cfg, n=16, temperature=1.0, seed=seed)
        rollouts.append([(c.tokens, c.mask) for c in rolled])
    assert rollouts[0] == rollouts[1] == rollouts[2] != rollouts[3]
    assert {c.tool_calls for c in rolled} == {0, 1, 2, 3}


def test_the_context_must_hold_the_tools_answers():
    policy, task, cfg = build_toy()
    task = task._replace(write=Tool(count_calls, STOP, 4))
    for cfg.max_new_tokens, kept in ((418, 3), (419, 2)):
        assert len(encode(task, policy, cfg).train) == kept
