"""Does this version learn exactly as another commit did?

    python -m experiments.equal_learning COMMIT        about ten minutes of a core

For each of COMMANDS, runs the program of COMMIT, in a temporary worktree, and this one, and
compares every column of metrics.jsonl except times, the completions that were logged, and the
parameters of the last checkpoint: bit for bit. Exits with 1 if anything differs. A change of
the method, on purpose, ends the comparison: then delete this script.
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
    for row in rows:
        for name in TIMES:
            row.pop(name, None)
        if "answer" in row:  # versions differ in how they write answers that JSON lacks
            row["answer"] = str(row["answer"])
    return rows


def find_differences(old, new):
    """Return the names of what differs between the folders of two runs."""
    differing = []
    for name in ("metrics.jsonl", "samples.jsonl"):
        if read_rows(old / name) != read_rows(new / name):
            differing.append(name)
    before, after = (load_file(run / "checkpoint" / "model.safetensors") for run in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or not before[name].equal(after[name]):
            differing.append(name)
    return differing


def main():
    parser = argparse.ArgumentParser(description="compare with what another commit learns")
    parser.add_argument("commit")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    args = parser.parse_args()
    known = subprocess.run(["git", "rev-parse", "-q", "--verify", f"{args.commit}^{{commit}}"],
                           cwd=ROOT, capture_output=True)
    if known.returncode:
        parser.error(f"there is no commit {args.commit}")
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        worktree = ["git", "worktree"]
        subprocess.run([*worktree, "add", "-q", "--detach", folder / "old", args.commit],
                       cwd=ROOT, check=True)
        try:
            for name in args.only:
                outs = {}
                for side, root in (("old", folder / "old"), ("new", ROOT)):
                    outs[side] = folder / side / "runs" / name.replace(" ", "-") / side
                    subprocess.run([sys.executable, "grpo_sg.py", *COMMANDS[name].split(),
                                    "--out", outs[side]], cwd=root, check=True,
                                   capture_output=True)
                rows = len(read_rows(outs["new"] / "metrics.jsonl"))
                differing = find_differences(outs["old"], outs["new"])
                differ |= bool(differing)
                print(f"{name}: {rows} rows and all parameters, "
                      f"{'differ: ' + ', '.join(differing) if differing else 'equal'}", flush=True)
        finally:
            subprocess.run([*worktree, "remove", "--force", folder / "old"], cwd=ROOT)
    raise SystemExit(differ)


if __name__ == "__main__":
    main()
