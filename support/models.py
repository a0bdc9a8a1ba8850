"""A causal language model and its tokenizer: from a folder or the hub, to the device, and back to a folder."""
import os

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from support.fit import phase
from support.program import fail, first_line

transformers.utils.logging.disable_progress_bar()  # of loading and saving: they would cut through a run's own


def read_model(folder, local):
    """(model, tokenizer) as save_pretrained wrote them, in float32. AutoTokenizer would put Qwen2's own rules
    in place of those in another model's tokenizer.json. No code that comes with a model is run."""
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
        fail(f"cannot load a model and its tokenizer from --model {name}: give a folder written by "
             f"save_pretrained, or a hub name and a network ({first_line(error)})")


def prepare(model, tokenizer, prompt, gradient_checkpointing):
    """The model where it will work, in eval mode. prompt: the token ids of one. Fails where the tokenizer has no
    words or no end token, and where the model's logits are not simply those of its vocabulary matrix."""
    if not prompt or not stop_tokens(model, tokenizer):
        fail("the tokenizer saved with the model is not usable: it has no end token or no words")
    if torch.cuda.is_available():
        # cuDNN's attention plans anew for every new shape, which in sampling is every token: minutes a step on an
        # H100 (huggingface/transformers#48163). On a B200, with few KV heads, its results are wrong without a
        # word (pytorch/pytorch#193893).
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32: the vocabulary matrix
        if not bfloat16_works(torch.device("cuda")):
            print("this GPU has no bfloat16 of its own: everything is computed in float32, more slowly")
        with phase("moving the model to the GPU", "it is too large for this card"):
            model = model.to("cuda")
    model = model.eval()
    ids = torch.tensor([prompt], device=model.device)
    with torch.no_grad():
        logits = model.get_output_embeddings()(model.base_model(input_ids=ids).last_hidden_state)
        expected = model(input_ids=ids).logits
        if not torch.allclose(logits, expected, atol=0.01 * float(expected.abs().max())):
            fail("the model changes its logits after the vocabulary matrix, which is not supported")
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
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
