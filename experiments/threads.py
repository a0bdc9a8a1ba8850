"""How many threads, and how should they wait? The same work with each choice, alone and beside others.

    python experiments/threads.py        twenty minutes; nothing else may run

The work is a warm-up of the default run in 50 steps. The choices take turns, five times alone, five times
beside one busy process, and five times beside as many as there are cores. Prints the seconds without the
start of Python, and a hash of the weights at the end, and writes them to results/threads.json.
"""
import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CHOICES = {"one thread": {"OMP_NUM_THREADS": "1"},
           "all threads, OpenMP's own wait": {"FIXED": "1", "GOMP_SPINCOUNT": "300000"},
           "all threads, OMP_WAIT_POLICY=PASSIVE": {"FIXED": "1", "OMP_WAIT_POLICY": "PASSIVE"},
           "all threads, the wait of support/before_torch.py": {"FIXED": "1"},
           "as many as free cores, with that wait (the default)": {}}


def work():
    """Print the seconds and a hash of the weights."""
    sys.path.insert(0, os.path.dirname(HERE))
    import grpo_sg
    import tasks
    if "FIXED" in os.environ:
        tasks.threads.paced = iter
    cfg = grpo_sg.parse(["--train_problems", "500"])
    task, model, tokenizer, _ = grpo_sg.load(cfg)
    began = time.time()
    tasks.warm_up(model, tokenizer, task._replace(warmup=50), cfg)
    weights = b"".join(weights.detach().numpy().tobytes() for weights in model.parameters())
    print(json.dumps([round(time.time() - began, 2), hashlib.sha256(weights).hexdigest()[:16]]))


def measured(choice):
    done = subprocess.run([sys.executable, __file__, "work"], env={**os.environ, **CHOICES[choice]},
                          check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    rows = []
    for others in 0, 1, os.cpu_count():
        busy = [subprocess.Popen([sys.executable, "-c", "while True: 3 * 5"]) for _ in range(others)]
        try:
            found = [(choice, *measured(choice)) for _ in range(5) for choice in CHOICES]
        finally:
            for process in busy:
                process.kill()
        for choice in CHOICES:
            seconds, weights = zip(*(run for name, *run in found if name == choice))
            rows.append({"busy processes": others, "choice": choice, "median": statistics.median(seconds),
                         "seconds": seconds, "weights": sorted(set(weights))})
            print(rows[-1], flush=True)
    with open(os.path.join(HERE, "results", "threads.json"), "w") as file:
        file.write("[" + ",\n".join(map(json.dumps, rows)) + "]\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=["measure", "work"], default="measure")
    {"measure": main, "work": work}[parser.parse_args().what]()
