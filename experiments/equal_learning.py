"""Does this version learn exactly as another commit did?

    python -m experiments.equal_learning COMMIT        about ten minutes of a core

For each of COMMANDS, runs the program of COMMIT, in a temporary worktree, and this one, and
compares every column of metrics.jsonl except times, the completions that were logged, and the
parameters of the last checkpoint: bit for bit. Exits with 1 if anything
differs. A change of the method, on purpose, ends the comparison: then delete this script.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = {
    "kk": "--task kk",
    "math": "--task math",
    "qa": "--task qa",
    "KL, three updates": "--steps 4 --beta .01 --updates 3 --tokens_per_micro_batch 400"}
TIMES = {"seconds", "seconds_sampling", "seconds_update", "tokens_per_second"}


def read_rows(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def find_differences(old, new):
    """Return the names of what differs between the folders of two runs."""
    found = []
    for name in ("metrics.jsonl", "samples.jsonl"):
        if read_rows(old / name) != read_rows(new / name):
            found.append(name)
    before, after = (load_file(run / "checkpoint" / "model.safetensors") for run in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or not before[name].equal(after[name]):
            found.append(name)
    return found


def main():
    parser = argparse.ArgumentParser(description="compare with what another commit learns")
    parser.add_argument("commit")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    given = parser.parse_args()
    known = subprocess.run(["git", "rev-parse", "-q", "--verify", f"{given.commit}^{{commit}}"],
                           cwd=ROOT, capture_output=True)
    if known.returncode:
        parser.error(f"there is no commit {given.commit}")
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        worktree = ["git", "worktree"]
        subprocess.run([*worktree, "add", "-q", "--detach", folder / "old", given.commit],
                       cwd=ROOT, check=True)
        try:
            for name in given.only:
                outs = {}
                for side, root in (("old", folder / "old"), ("new", ROOT)):
                    outs[side] = folder / side / "runs" / name.replace(" ", "-") / side
                    subprocess.run([sys.executable, "grpo_sg.py", *COMMANDS[name].split(),
                                    "--out", outs[side]], cwd=root, check=True,
                                   capture_output=True)
                rows = len(read_rows(outs["new"] / "metrics.jsonl"))
                found = find_differences(outs["old"], outs["new"])
                differ |= bool(found)
                print(f"{name}: {rows} rows and all parameters, "
                      f"{'differ: ' + ', '.join(found) if found else 'equal'}", flush=True)
        finally:
            subprocess.run([*worktree, "remove", "--force", folder / "old"], cwd=ROOT)
    raise SystemExit(differ)


if __name__ == "__main__":
    main()
