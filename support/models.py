"""Load and save a causal language model and its tokenizer, move the model to its device,
encode prompts, and find the tokens that end a completion. Functions here raise UserError
on bad input."""
import datetime
import inspect
import json
import math
import os
import re

import grpo_sg  # before torch: it configures PyTorch's allocator
import jinja2
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.integrations import sdpa_attention

from support.program import UserError, first_line, say

THREADS = torch.get_num_threads()
# Functions of (policy, cfg, prompt) that optional folders register. Each may replace the
# policy's sampler or optimizer with one for its device.
EQUIP = []


# ---- From a folder or the hub, and back ----

def read_model(folder, local):
    """Read (model, tokenizer) as save_pretrained wrote them, without running code that
    comes with the model."""
    return read_parameters(folder, local), read_tokenizer(folder, local)


def read_parameters(folder, local):
    """Read a model with its parameters in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=local,
                                                trust_remote_code=False)


def read_tokenizer(folder, local):
    # AutoTokenizer would replace the rules in tokenizer.json by Qwen2's own.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=local)
    tokenizer.chat_template = fix_date(tokenizer.chat_template)
    return tokenizer


def fix_date(template):
    """Replace "today" in a chat template with the current date.

    Some templates (Llama 3.2's, SmolLM3's) insert the date. The run saves the
    tokenizer, so a run resumed on another day has the same prompts.
    """
    if not isinstance(template, str):
        return template
    def write_today(call):
        return repr(datetime.date.today().strftime(call[2]))
    return re.sub(r"strftime_now\(\s*([\"'])(.*?)\1\s*\)", write_today, template)


def save_model(folder, model, tokenizer):
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except Exception as error:  # such as a full disk: each library raises its own type
        raise UserError(f"cannot write the model to {folder}: {first_line(error)}") from None


def load_model(name):
    """Load (model, tokenizer) from a folder or the hub."""
    local = os.path.isdir(name)
    if os.path.isfile(name):
        raise UserError(f"--model {name} is a file: give the folder that save_pretrained wrote")
    if not local and (name.count("/") > 1 or name.startswith((".", "/"))):
        raise UserError(f"--model {name}: there is no such folder")
    try:
        model, tokenizer = read_model(name, local)
    except Exception as error:  # no such name, no access, no network, half a folder
        raise UserError(f"cannot load a model and its tokenizer from --model {name}: "
                        f"{diagnose(name, error)}") from None
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        # Mamba or RWKV: it would continue from other prompts' states.
        raise UserError(f"--model {name}: {type(model).__name__} has no KV cache, which "
                        "sampling needs: name another model")
    return model, tokenizer


def diagnose(name, error):
    """Say what to do about a model that cannot be loaded."""
    found = set(os.listdir(name)) if os.path.isdir(name) else set()
    if "adapter_config.json" in found:
        return "it is an adapter: merge it with its model first (peft's merge_and_unload)"
    if "checkpoint" in found:
        return f"it is the folder of a run: did you mean --model {name}/checkpoint?"
    if "config.json" in found and "tokenizer.json" not in found:
        return "it has no tokenizer.json: save the tokenizer there (tokenizer.save_pretrained)"
    return ("give a folder written by save_pretrained, or a hub name, which needs a network "
            f"({first_line(error)})")


# ---- To the device ----

def find_device(name):
    """Return the device to use: "cpu", "cuda" (the first GPU) or "mps". "auto" takes CUDA
    if PyTorch can use it, otherwise the CPU."""
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
    """Move the model to the device with grpo_sg.prepare, and configure PyTorch for it:
    threads, attention, gradient checkpointing."""
    found = find_device(device)
    torch.set_num_threads(THREADS)
    if found == "cuda":
        set_up_gpu()
    elif found == "cpu" and model.num_parameters() < 1_000_000:
        # A tiny model runs thousands of small operations, in which threads mostly wait for
        # each other. One thread is as fast, and gives the same sums on any number of cores.
        torch.set_num_threads(1)
    elif device == "auto":
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"
        # parameters, gradients, and AdamW's two averages, 4 bytes each
        least = 16 * model.num_parameters() / 1e9
        say(f"PyTorch {torch.__version__}, built for {built}, finds no GPU that it can use: "
            f"computing on the CPU (threads: {torch.get_num_threads()}). Training takes "
            f"{least:.1f} GB of memory, and more for the completions: README.md, \"A real "
            "model\", links to settings for a laptop")
    return grpo_sg.prepare(model, found, gradient_checkpointing=gradient_checkpointing)


def set_up_gpu():
    if torch.cuda.get_device_capability() < (8, 0):
        # Without a mask, transformers lets PyTorch share keys and values among query
        # heads. On GPUs older than Ampere, only the kernel that stores a score for each
        # pair of tokens can do that.
        sdpa_attention.use_gqa_in_sdpa = repeat_keys
    if not grpo_sg.has_bfloat16("cuda"):
        say(f"{torch.cuda.get_device_name()} has no bfloat16 in hardware: computing in "
            "float32. Keys, values and activations take twice the memory, and matrix "
            "products up to eight times as long")


def repeat_keys(attention_mask, key, value):
    """Replace transformers' use_gqa_in_sdpa: False repeats keys and values per head."""
    return False


# ---- Prompts and stop tokens ----

def encode_problems(task, policy, cfg):
    """Return the task with its prompts encoded as token ids.

    Problems are dropped, and counted in a message, if the model's context cannot hold the
    prompt, a completion and the tool's answers. Raises UserError if none is left.
    """
    context = policy.model.config.get_text_config()
    context = getattr(context, "max_position_embeddings", math.inf)
    answers = task.max_turns if task.observe else 0
    most = context - (answers + 1) * cfg.max_new_tokens - answers * grpo_sg.TOOL_TOKENS
    encoded = {}
    for split in ("train", "valid", "test"):
        problems = []
        questions = [problem.question for problem in getattr(task, split)]
        prompts = encode_prompts(policy.tokenizer, task, questions, cfg.chat_template_kwargs)
        if not all(prompt for prompt, _ in prompts):
            raise UserError("the tokenizer's chat template turns a question into an empty "
                            "prompt: name another model, or fix its chat_template")
        for problem, (prompt, opening) in zip(getattr(task, split), prompts):
            problems.append(problem._replace(prompt=prompt, opening=opening))
        encoded[split] = [problem for problem in problems if len(problem.prompt) <= most]
        gone = len(problems) - len(encoded[split])
        lengths = [len(problem.prompt) for problem in problems]
        if gone:
            line = (f"{gone} of {len(problems)} {split} problems have prompts that are too "
                    f"long ({min(lengths)} to {max(lengths)} tokens): the model's context of "
                    f"{context} must hold a prompt, {answers + 1} times --max_new_tokens "
                    f"{cfg.max_new_tokens}, and {answers} tool answers of up to "
                    f"{grpo_sg.TOOL_TOKENS} tokens each")
            if gone == len(problems):
                left = (context - max(lengths) - answers * grpo_sg.TOOL_TOKENS) // (answers + 1)
                hint = f"at most --max_new_tokens {left}" if left > 0 else "another model"
                raise UserError(f"{line}: {hint}")
            print(f"dropped: {line}")
    return task._replace(**encoded)


def encode_prompt(tokenizer, task, question, template_kwargs="{}"):
    """Encode one question: see encode_prompts."""
    return encode_prompts(tokenizer, task, [question], template_kwargs)[0]


def encode_prompts(tokenizer, task, questions, template_kwargs="{}"):
    """Encode questions, through the tokenizer's chat template if it has one.

    A prompt that contains the system prompt ends with task.opening, such as <think>.
    Base models rarely start with that tag themselves, and a group of badly formed
    completions has no learning signal. Nothing is added if the template already opens
    the thoughts, or closes them because thinking is turned off.

    Args:
        tokenizer, task, questions: the task gives the system prompt and the opening.
        template_kwargs: JSON with further variables for the template, such as
            {"enable_thinking": false}.

    Returns:
        A list of (token ids, tag): the tag that the prompt ends with, or "".
    """
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
    # One call for all of them is much faster.
    ids = tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    return list(zip(ids, openings))


def read_kwargs(text):
    """Read --chat_template_kwargs as a dict."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    # apply_chat_template's own parameters, such as tools, are not template variables.
    own = {"messages", *inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters}
    if not isinstance(found, dict) or own & found.keys():
        raise UserError("--chat_template_kwargs must be a JSON object of the template's own "
                        f"variables, such as '{{\"enable_thinking\": false}}', not {text}")
    return found


def render_chat(tokenizer, system, question, template_kwargs):
    """Render a chat as text. If the template refuses the system role, as Gemma 2's does,
    the user's turn contains both texts."""
    both = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    one = [{"role": "user", "content": f"{system}\n\n{question}"}]
    given = {**template_kwargs, "add_generation_prompt": True, "tokenize": False}
    for chat in (both, one):
        try:
            return tokenizer.apply_chat_template(chat, **given)
        except jinja2.TemplateError as error:
            reason = first_line(error)
    raise UserError(f"the tokenizer's chat template refuses a question: {reason}. Name "
                    "another model, or fix its chat_template")


def find_stop_ids(model, tokenizer):
    """Return the ids that end a completion. Qwen's chat turns end in <|im_end|>, texts of
    its base models in <|endoftext|>, and the tokenizer names only one of them as its end
    token: stop on both, and on all end tokens in the model's generation_config."""
    words = tokenizer.get_vocab()
    configured = model.generation_config.eos_token_id
    stops = {words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id}
    return (stops | set(configured if isinstance(configured, list) else [configured])) - {None}
