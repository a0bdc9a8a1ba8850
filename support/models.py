"""Loading a causal language model and its tokenizer, moving the model to its device,
saving both; encoding prompts; finding what ends a completion."""
import datetime
import inspect
import json
import math
import os
import re

import grpo_sg  # before torch: it says how PyTorch allocates memory
import jinja2
import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.integrations import sdpa_attention

from support.program import UserError, first_line, say

THREADS = torch.get_num_threads()
# Functions of (policy, cfg, prompt) that optional folders register: each may give the
# policy another sampler or optimizer that suits its device.
EQUIP = []


# ---- From a folder or the hub, and back ----

def read_model(folder, local):
    """(model, tokenizer) as save_pretrained wrote them. No code that comes with a model
    is run."""
    return read_parameters(folder, local), read_tokenizer(folder, local)


def read_parameters(folder, local):
    """The model, with its parameters in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=local,
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
    """Load (model, tokenizer) from a folder or the hub. Raises UserError if that fails."""
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
        raise UserError(f"--model {name}: {type(model).__name__} keeps no keys and values, "
                        "which sampling needs: name another model")
    return model, tokenizer


def diagnose(name, error):
    """Return what to do about a model that cannot be loaded."""
    found = set(os.listdir(name)) if os.path.isdir(name) else set()
    if "adapter_config.json" in found:
        return "it is an adapter: merge it with its model first (peft's merge_and_unload)"
    if "checkpoint" in found:
        return f"it is the folder of a run: did you mean --model {name}/checkpoint?"
    if "config.json" in found and "tokenizer.json" not in found:
        return "it has no tokenizer.json: save the tokenizer there (tokenizer.save_pretrained)"
    return ("give a folder written by save_pretrained, or a hub name and a network "
            f"({first_line(error)})")


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
    """Move the model to the device that --device names, with grpo_sg.prepare, and choose
    how PyTorch computes there."""
    found = find_device(device)
    torch.set_num_threads(THREADS)
    if found == "cuda":
        set_up_gpu()
    elif found == "cpu" and model.num_parameters() < 1_000_000:
        # With a tiny model several threads wait for each other at each of thousands of
        # small operations. One thread is not slower, even next to other work, and gives
        # the same sums on any number of cores.
        torch.set_num_threads(1)
    elif device == "auto":
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"
        # parameters, gradients, and AdamW's two averages, of 4 bytes each
        least = 16 * model.num_parameters() / 1e9
        say(f"PyTorch {torch.__version__}, built for {built}, finds no GPU that it can use: "
            f"computing on the CPU (threads: {torch.get_num_threads()}). Training takes "
            f"{least:.1f} GB of memory, and more for the completions: README.md, \"A real "
            "model\", has sizes for a laptop")
    return grpo_sg.prepare(model, found, gradient_checkpointing=gradient_checkpointing)


def set_up_gpu():
    if torch.cuda.get_device_capability() < (8, 0):
        # Without a mask, transformers lets PyTorch share keys and values among the heads
        # of queries. On GPUs older than these, only the kernel that stores a score for
        # each pair of tokens can do that.
        sdpa_attention.use_gqa_in_sdpa = repeat_keys
    if not grpo_sg.has_bfloat16("cuda"):
        say(f"{torch.cuda.get_device_name()} has no bfloat16 of its own: computing in "
            "float32. Keys, values and activations take twice the memory, and matrix "
            "products up to eight times as long")


def repeat_keys(attention_mask, key, value):
    """Replaces transformers' own check: no, repeat keys and values for each head."""
    return False


# ---- Prompts, and what ends a completion ----

def encode_problems(task, policy, cfg):
    """Return the task with its problems' prompts as token ids, without problems whose
    prompts are too long for the model's context: a completion and the tool's answers must
    fit, too. Prints how many these are. Raises UserError if none is left."""
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
                            "prompt: name another model, or repair its chat_template")
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
    """Read --chat_template_kwargs as a dict."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    # Its own parameters, such as tools, are not for the template.
    own = {"messages", *inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters}
    if not isinstance(found, dict) or own & found.keys():
        raise UserError("--chat_template_kwargs must be a JSON object of the template's own "
                        f"variables, such as '{{\"enable_thinking\": false}}', not {text}")
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


def find_stop_ids(model, tokenizer):
    """Ids that end a completion. Qwen's chat turns end in <|im_end|>, its base models'
    texts in <|endoftext|>, and the tokenizer calls only one of them its end token: stop
    on both, and on all that the model's generation_config names."""
    words = tokenizer.get_vocab()
    configured = model.generation_config.eos_token_id
    stops = {words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id}
    return (stops | set(configured if isinstance(configured, list) else [configured])) - {None}
