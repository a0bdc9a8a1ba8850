"""Load and save a causal language model and its tokenizer, with diagnoses, and move the model
to its device. Functions here raise UserError on bad input."""
import datetime
import inspect
import json
import math
import os
import re

import grpo_sg  # before torch: it configures PyTorch's allocator
import jinja2
import torch
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.integrations import sdpa_attention

import tasks
from support.program import first_line, say
from tasks import UserError

THREADS = torch.get_num_threads()
# Functions of (policy, cfg, prompt) that optional folders register. Each may replace the
# policy's sampler or optimizer with one for its device.
EQUIP = []


# ---- From a folder or the hub, and back ----

def read_model(folder, local=True):
    """Read (model, tokenizer) as save_pretrained wrote them."""
    model, tokenizer = grpo_sg.load_model(folder, local=local)
    tokenizer.chat_template = fix_date(tokenizer.chat_template)
    return model, tokenizer


def read_tokenizer(folder, local):
    """Read only the tokenizer, for an engine that has the model."""
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
        config, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=local)
        if "quantization_config" in config:
            raise ValueError("it is quantized: use the unquantized model")
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
    if str(error).startswith("it "):  # said above, or by grpo_sg.load_model
        return str(error)
    return ("give a folder written by save_pretrained, or a hub name, which needs a network "
            f"({first_line(error)})")


# ---- To the device ----

def set_up(model, device, gradient_checkpointing):
    """Move the model to the device with grpo_sg.prepare, and configure PyTorch for it:
    threads, attention, gradient checkpointing."""
    found = grpo_sg.find_device(device)
    torch.set_num_threads(THREADS)
    if found == "cuda":
        set_up_gpu()
    elif device == "auto" and model.num_parameters() >= 1_000_000:
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


class HalvingSampler:
    """Call a sampler; if a GPU runs out of memory, call it with half as many prompts, and
    the same random numbers. Later calls begin with what has worked."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.most = math.inf  # prompts at once

    def __call__(self, model, prompts, *, generator, **settings):
        completions = []
        while len(completions) < len(prompts):
            part = prompts[len(completions):][:min(self.most, len(prompts))]
            state = generator.get_state()
            try:
                completions += self.sampler(model, part, generator=generator, **settings)
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self.most = len(part) // 2
                generator.set_state(state)
                say(f"out of GPU memory: sampling {self.most} at once; --sample_batch "
                    f"{self.most} avoids the failed attempts")
        return completions


# ---- The chat template ----

def check_template(tokenizer, task, cfg):
    """Raise UserError if the template or --chat_template_kwargs is not usable."""
    read_kwargs(cfg.chat_template_kwargs)
    try:
        (prompt, _), = tasks.encode_prompts(tokenizer, task, [task.test[0].question],
                                              cfg.chat_template_kwargs)
    except jinja2.TemplateError as error:
        raise UserError("the tokenizer's chat template refuses a question: "
                        f"{first_line(error)}. Name another model, or fix its chat_template")
    if not prompt:
        raise UserError("the tokenizer's chat template turns a question into an empty "
                        "prompt: name another model, or fix its chat_template")


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
