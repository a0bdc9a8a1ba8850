"""A causal language model and its tokenizer: from a folder or the hub, to the device, and back to a
folder."""
import os

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from support import memory
from support.fit import phase
from support.program import fail, first_line
from support.sampler import choose

transformers.utils.logging.disable_progress_bar()  # of loading and saving, which cut through a run's


def read_model(folder, local):
    """(model, tokenizer) as save_pretrained wrote them, in float32. AutoTokenizer would put Qwen2's own
    rules in place of those in another model's tokenizer.json. No code that comes with a model is run."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=local)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=local), tokenizer


def save_model(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_model(name):
    """(model, tokenizer) from a folder or the hub; one line where that fails, for whatever reason."""
    try:
        return read_model(name, os.path.isdir(name))
    except Exception as error:  # no such name, no access, no network, half a folder: each has its own type
        if os.path.isdir(os.path.join(name, "checkpoint")):
            fail(f"--model {name} is the folder of a run: did you mean --model {name}/checkpoint?")
        fail(f"cannot load a model and its tokenizer from --model {name}: give a folder written by "
             f"save_pretrained, or a hub name and a network ({first_line(error)})")


def set_up_gpu():
    # PyTorch prefers cuDNN's attention on H100, H200 and B200. It plans anew for each shape, and a decode
    # step has one of its own each time: minutes a step (huggingface/transformers#48163). On B200 it is
    # silently wrong for models with fewer than 8 key-value heads (pytorch/pytorch#193893).
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = True  # for what stays in float32: the vocabulary matrix
    if not bfloat16_works(torch.device("cuda")):
        print("this GPU has no bfloat16 of its own: computing in float32, which takes more time and memory")


def prepare(model, tokenizer, prompt, cfg, sample):
    """The model where it will work, in eval mode; on a GPU with model.sampler, a faster one that draws what
    `sample` does. prompt: the token ids of one. Fails where the tokenizer has no words or no end token, and
    where the model's logits are not simply those of its vocabulary matrix."""
    if not prompt or not stop_tokens(model, tokenizer):
        fail("the tokenizer saved with the model is not usable: it has no end token or no words")
    if torch.cuda.is_available():
        set_up_gpu()
        with phase("moving the model to the GPU", "it is too large for this card"):
            model = model.to("cuda")
        memory.say(model, cfg)
    model = model.eval()
    ids = torch.tensor([prompt], device=model.device)
    with torch.no_grad():
        logits = model.get_output_embeddings()(model.base_model(input_ids=ids).last_hidden_state)
        expected = model(input_ids=ids).logits
        if not torch.allclose(logits, expected, atol=0.01 * float(expected.abs().max())):
            fail("the model changes its logits after the vocabulary matrix, which is not supported")
    if cfg.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if cfg.sampler == "auto" and bfloat16_works(model.device):
        model.sampler, said = choose(model, sample, prompt)
        print(said or "completions are sampled by the recorded steps of support/graph.py")
    return model


def eval_mode(model, checkpointing=False):
    """No dropout. To be checkpointed, if it is, a layer as such must be in training mode: transformers looks
    there. The parts of the layer stay in eval mode."""
    for module in model.eval().modules():
        module.training = checkpointing and getattr(module, "gradient_checkpointing", False)


def bfloat16_works(device):  # not on a T4 or V100, where it would be slow
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def in_bfloat16(device):
    """On a GPU matrices are multiplied in bfloat16, while the weights stay in float32: at a learning rate of
    1e-6 bfloat16 weights would round most updates away."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bfloat16_works(device))


def stop_tokens(model, tokenizer):
    """Ids that end a completion. Qwen's chat turns end in <|im_end|>, its base models' texts in
    <|endoftext|>, and the tokenizer calls only one of them its end token: stop on both."""
    words = tokenizer.get_vocab()
    configured = model.generation_config.eos_token_id
    stops = {words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id}
    return (stops | set(configured if isinstance(configured, list) else [configured])) - {None}
