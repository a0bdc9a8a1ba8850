"""A causal language model and its tokenizer: from a folder or the hub, to the device,
and back to a folder; what a prompt looks like to it, and what ends its completions."""
import datetime
import inspect
import json
import math
import os
import re

import jinja2
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.integrations import sdpa_attention

from tqdm import tqdm

from support.program import UserError, call_users, first_line, say


TOOL_TOKENS = 500  # most tokens of a tool's answer
THREADS = torch.get_num_threads()


# ---- From a folder or the hub, and back ----

def read_model(folder, local):
    """(model, tokenizer) as save_pretrained wrote them. No code that comes with a model
    is run."""
    return read_parameters(folder, local), read_tokenizer(folder, local)


def read_parameters(folder, local):
    """The model, its parameters in float32. Dropout is 0 in all layers, so that it is off
    in training mode too, in which layers that are checkpointed must be: in the first
    update r = 1, exactly."""
    config = AutoConfig.from_pretrained(folder, local_files_only=local, trust_remote_code=False)
    # one and the same, or the language part of two
    for part in (config, config.get_text_config()):
        for name, value in part.to_dict().items():
            if re.search("drop|jitter", name) and type(value) is float:
                setattr(part, name, 0.0)
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype="float32",
                                                local_files_only=local,
                                                trust_remote_code=False)


def read_tokenizer(folder, local):
    # AutoTokenizer would put Qwen2's own rules in place of those in another model's
    # tokenizer.json.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=local)
    tokenizer.chat_template = fix_date(tokenizer.chat_template)
    return tokenizer


def hide_bars():
    """Of loading and saving, which would cut through a run's own."""
    transformers.utils.logging.disable_progress_bar()


def fix_date(template):
    """Some chat templates (Llama 3.2's, SmolLM3's) write the date of the day on which
    they are used. It becomes the present one for good, as the tokenizer is saved with
    the run: all prompts of a run are equal, whenever it is resumed."""
    if not isinstance(template, str):
        return template
    def write_today(call):
        return repr(datetime.date.today().strftime(call[2]))
    return re.sub(r"strftime_now\(\s*([\"'])(.*?)\1\s*\)", write_today, template)


def save_model(folder, model, tokenizer):
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except Exception as error:  # a full disk: each library has its own type
        raise UserError(f"cannot write the model to {folder}: {first_line(error)}") from None


def load_model(name):
    """(model, tokenizer) from a folder or the hub. Raises UserError if that fails, for
    whatever reason."""
    if not os.path.isdir(name) and (name.count("/") > 1 or name.startswith((".", "/"))):
        raise UserError(f"--model {name}: there is no such folder")
    try:
        model, tokenizer = read_model(name, os.path.isdir(name))
    # no such name, no access, no network, half a folder: each has its own type
    except Exception as error:
        if os.path.isfile(os.path.join(name, "adapter_config.json")):
            raise UserError(f"--model {name} is an adapter: merge it with its model and save "
                            "that first (peft's merge_and_unload)") from None
        if os.path.isdir(os.path.join(name, "checkpoint")):
            raise UserError(f"--model {name} is the folder of a run: did you mean --model "
                            f"{name}/checkpoint?") from None
        has_config = os.path.isfile(os.path.join(name, "config.json"))
        if has_config and not os.path.isfile(os.path.join(name, "tokenizer.json")):
            raise UserError(f"--model {name} has no tokenizer.json: save the model's tokenizer "
                            "into that folder (tokenizer.save_pretrained)") from None
        raise UserError(f"cannot load a model and its tokenizer from --model {name}: give "
                        "a folder written by save_pretrained, or a hub name and a network "
                        f"({first_line(error)})") from None
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        # Mamba or RWKV: it would go on from other prompts' states.
        raise UserError(f"--model {name}: {type(model).__name__} keeps no keys and values, by "
                        "which completions are sampled: name another model")
    return model, tokenizer


# ---- To the device ----

def find_device(name):
    """"cpu", "cuda" (of several GPUs the first) or "mps", as named; of "auto", CUDA's if
    there is one, else the CPU. Raises UserError if PyTorch cannot use the named one."""
    usable = {"cpu": True, "cuda": torch.cuda.is_available(),
              "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if usable["cuda"] else "cpu"
    if not usable[name]:
        names = " and ".join(each for each in usable if usable[each])
        raise UserError(f"--device {name}: here PyTorch {torch.__version__} (built for CUDA "
                        f"{torch.version.cuda}) can use {names}")
    return name


def prepare(model, gradient_checkpointing, device="auto"):
    """The model on the device, in eval mode; on a GPU of CUDA, with its vocabulary matrix
    in float32."""
    found = find_device(device)
    torch.set_num_threads(THREADS)
    if found == "cuda":
        set_up_gpu()
        keep_logits_in_float32(model)
    elif found == "cpu" and model.num_parameters() < 1_000_000:
        # Threads wait for each other at each of thousands of small operations: with
        # one, a tiny model is not slower, also beside other work, and its sums are the
        # same on any number of cores.
        torch.set_num_threads(1)
    elif device == "auto":
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs alone"
        # parameters, gradients, and AdamW's two averages, of 4 bytes each
        least = 16 * model.num_parameters() / 1e9
        say(f"no GPU that PyTorch {torch.__version__}, built for {built}, can use: computing "
            f"on the CPU (threads: {torch.get_num_threads()}). Training takes {least:.1f} GB "
            "of memory, and more for the completions: README.md, \"A real model\", has "
            "sizes for a laptop")
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return model.to(found).eval()


def set_up_gpu():
    # PyTorch prefers cuDNN's attention on H100, H200 and B200. It plans anew for each
    # shape, and a decode step has one of its own each time: minutes a step
    # (huggingface/transformers#48163). On B200 it is silently wrong for models with
    # fewer than 8 key-value heads (pytorch/pytorch#193893).
    torch.backends.cuda.enable_cudnn_sdp(False)
    # for what stays in float32: the vocabulary matrix
    torch.backends.cuda.matmul.allow_tf32 = True
    if torch.cuda.get_device_capability() < (8, 0):
        # Where there is no mask, transformers leaves it to PyTorch to share keys and
        # values among the heads of queries. On GPUs older than these only the kernel
        # that holds a score for each pair of tokens can.
        sdpa_attention.use_gqa_in_sdpa = repeat_keys
    if not bfloat16_works("cuda"):
        say(f"{torch.cuda.get_device_name()} has no bfloat16 of its own: computing in "
            "float32. Keys, values and activations take twice the memory, and products of "
            "matrices up to eight times as long")


def repeat_keys(attention_mask, key, value):
    """In place of transformers' own: no, keys and values are to be repeated for each head
    of queries."""
    return False


def keep_logits_in_float32(model):
    """Take the vocabulary matrix out of autocast: from logits in bfloat16 the ratio r
    would be off by more than the clip allows."""
    head = model.get_output_embeddings()
    multiply = head.forward

    def forward(hidden):
        with torch.autocast(hidden.device.type, enabled=False):
            return multiply(hidden.float())
    head.forward = forward


def bfloat16_works(device_type):  # not on a T4 or V100, where it would be slow
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def in_bfloat16(device):
    """On a GPU matrices are multiplied in bfloat16, while the parameters stay in float32:
    at a learning rate of 1e-6 bfloat16 ones would round most updates away."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bfloat16_works(device.type))


# ---- Sampling within a device's memory ----

class Cache(transformers.DynamicCache):
    """Keeps keys in the type of the values: under autocast rotary embedding makes them
    float32, which takes twice the memory."""

    def update(self, keys, values, *more, **named):
        return super().update(keys.to(values.dtype), values, *more, **named)


def sample_in_parts(policy, contexts, most, generator, **settings):
    """A completion of each context, by the policy's sampler on `most` rows at once; on
    half as many if a GPU's memory is full, with the same random numbers."""
    completions = []
    while len(completions) < len(contexts):
        part = contexts[len(completions):][:most]
        state = generator.get_state()
        try:
            with in_bfloat16(policy.model.device):
                completions += policy.sampler(policy.model, part, generator=generator,
                                              **settings)
        except torch.OutOfMemoryError:
            if len(part) == 1:
                raise
            most = len(part) // 2
            generator.set_state(state)
            say(f"out of GPU memory: sampling {most} at once; with --sample_batch {most} "
                "no attempt may fail")
    return completions


# ---- Prompts, and what ends a completion ----

def encode_problems(task, policy, cfg):
    """The task, its problems with their prompts as token ids, and without those that
    leave too little room in the model's context for a completion and the tool's answers;
    prints how many these are. Raises UserError if none is left."""
    context = policy.model.config.get_text_config()
    context = getattr(context, "max_position_embeddings", math.inf)
    answers = task.max_turns if task.observe else 0
    most = context - (answers + 1) * cfg.max_new_tokens - answers * TOOL_TOKENS
    encoded = {}
    for split in ("train", "valid", "test"):
        problems = []
        questions = [problem.question for problem in getattr(task, split)]
        prompts = encode_prompts(policy.tokenizer, task, questions, cfg.chat_template_kwargs)
        for problem, (prompt, opening) in zip(getattr(task, split), prompts):
            problems.append(problem._replace(prompt=prompt, opening=opening))
        encoded[split] = [problem for problem in problems if len(problem.prompt) <= most]
        gone = len(problems) - len(encoded[split])
        lengths = [len(problem.prompt) for problem in problems]
        if gone:
            line = (f"{gone} of {len(problems)} {split} problems have prompts that are too "
                    f"long (of {min(lengths)} to {max(lengths)} tokens): in the model's "
                    f"context of {context} a prompt, {answers + 1} times --max_new_tokens "
                    f"{cfg.max_new_tokens} and {answers} answers of a tool, of up to "
                    f"{TOOL_TOKENS} tokens each, must have room")
            if gone == len(problems):
                left = (context - min(lengths) - answers * TOOL_TOKENS) // (answers + 1)
                hint = f"at most --max_new_tokens {left}" if left > 0 else "another model"
                raise UserError(f"{line}: {hint}")
            print(f"dropped: {line}")
    return task._replace(**encoded)



def encode_prompt(tokenizer, task, question, template_kwargs="{}"):
    """(token ids of a prompt, the tag that it ends with, "" if there is none)."""
    return encode_prompts(tokenizer, task, [question], template_kwargs)[0]


def encode_prompts(tokenizer, task, questions, template_kwargs="{}"):
    """For each question (token ids of its prompt, the tag that this ends with, "" if there
    is none), through the tokenizer's chat template if it has one. A prompt ends with
    task.opening, such as <think>, if it has the system prompt: base models hardly ever
    begin with that, and a group of badly formed completions teaches nothing. Some
    templates open the thoughts themselves, or close them at once where thinking is
    turned off: then nothing is added. template_kwargs: what else the template is given,
    as JSON: {"enable_thinking": false}."""
    tags = [tag for tag in (task.opening, "<think>") if tag]
    given = read_kwargs(template_kwargs)
    texts, openings = [], []
    for question in tqdm(questions, "prompts", leave=False, delay=2):
        text = f"{task.system}\n\n{question}\n\n"
        if tokenizer.chat_template:
            text = render_chat(tokenizer, task.system, question, given)
        opened = text.rstrip().endswith((*tags, "</think>"))
        if task.opening and task.system in text and not opened:
            text += task.opening
        texts.append(text)
        ends = [tag for tag in tags if text.rstrip().endswith(tag)]
        openings.append(ends[0] if ends else "")
    # All at once, which is much faster.
    ids = tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    return list(zip(ids, openings))


def read_kwargs(text):
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"--chat_template_kwargs must be a JSON object, such as "
                        f"'{{\"enable_thinking\": false}}', "
                        f"not {text}")
    return found


def render_chat(tokenizer, system, question, template_kwargs):
    """The text of a chat. If the template refuses a system role (Gemma 2's), one turn
    has both texts."""
    both = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    one = [{"role": "user", "content": f"{system}\n\n{question}"}]
    given = {**template_kwargs, "add_generation_prompt": True, "tokenize": False}
    for chat in (both, one):
        try:
            return tokenizer.apply_chat_template(chat, **given)
        except jinja2.TemplateError as error:
            reason = first_line(error)
    raise UserError(f"the tokenizer's chat template refuses a question: {reason}")


def call_tool(task, texts):
    """The answers of the task's tool to texts that end with a call of it. Raises
    UserError if it raises, or returns something else than as many texts."""
    if not texts:
        return []
    words = f"the tool of --task {task.name}, for {texts[0]!r}"
    answers = call_users(task.observe, texts, words=words)
    right = isinstance(answers, (list, tuple)) and len(answers) == len(texts)
    if not right or not all(isinstance(answer, str) for answer in answers):
        raise UserError(f"{words}: observe gets {len(texts)} texts and must return a list of "
                        f"as many, not {answers!r:.60}")
    return answers


def encode_tool_answer(tokenizer, text, most=TOOL_TOKENS):
    """Token ids of a tool's answer: at most `most` in all, of which the last are its
    last line, so that </information> is never cut off. A special token that the text
    spells, such as <|im_end|>, becomes ordinary ones: what a tool says opens no turn
    and closes none. Half a character, which JSON may hold, becomes a question mark."""
    text = text.encode(errors="replace").decode()
    end = text.rfind("\n") if "\n" in text else len(text)
    plain = {"add_special_tokens": False, "split_special_tokens": True}
    body = tokenizer(text[:end], **plain)["input_ids"]
    last = tokenizer(text[end:], **plain)["input_ids"][:most]
    return body[:most - len(last)] + last


class StopText(transformers.StoppingCriteria):
    """True of rows of token ids (B, t) that have just completed a text, which ends in
    many spellings, also in the middle of a token. (transformers' StopStringCriteria
    cannot read tokenizers that know words alone.)"""

    def __init__(self, tokenizer, text):
        self.tokenizer = tokenizer
        self.text = text

    def of(self, tokens):
        """Whether one list of token ids does."""
        return self(torch.tensor([tokens])).item()

    def __call__(self, ids, scores=None):
        tails = ids[:, -len(self.text.encode()):].tolist()  # a token is a byte or more
        found = [self.text in tail for tail in self.tokenizer.batch_decode(tails)]
        return torch.tensor(found, device=ids.device)


def find_stop_ids(model, tokenizer):
    """Ids that end a completion. Qwen's chat turns end in <|im_end|>, its base models'
    texts in <|endoftext|>, and the tokenizer calls only one of them its end token: stop
    on both, and on all that the model's generation_config names."""
    words = tokenizer.get_vocab()
    configured = model.generation_config.eos_token_id
    stops = {words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id}
    return (stops | set(configured if isinstance(configured, list) else [configured])) - {None}
