"""The reader's copies of the lesson's files, in which the exercises are solved."""
import importlib.util
import shutil


def copy_once(blank, path):
    """Copy a file of the lesson to the reader's, unless the reader has it."""
    if not path.exists():
        shutil.copy(blank, path)
        print(f"copied lesson/{blank.name} to {path.name}: write your bodies there")


def load_module(path, functions, blank):
    """Import the reader's file. Raises SystemExit if it lacks a function."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for function in functions:
        if not hasattr(module, function):
            raise SystemExit(f"error: {path.name} has no function {function}: copy its head from "
                             f"lesson/{blank.name}")
    return module
