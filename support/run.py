"""A run: its folder, its steps, its logs, its checkpoints, and the signals that it
gets."""
import contextlib
import glob
import json
import os
import secrets
import shutil
import signal
import threading
import time
from statistics import fmean as mean

import filelock
import torch
from tqdm import tqdm

from support import logs, models, page
from support.program import (
    UserError, exit_status, first_line, resume_command, say, say_in_handler, shown, suggest)

MAX_BAD_STEPS = 5  # a run ends after so many steps in a row without a finite update
SAVE_SECONDS = 600  # a checkpoint is at most so old
LOGS = ("metrics.jsonl", "samples.jsonl", "tokens.jsonl")


class Run:
    """What `train` needs besides the algorithm.

    cfg: the settings. policy: a grpo_sg.Policy. state: of the checkpoint that is
    resumed.

    Used as a context, it makes the run's folder if it is new, and holds it for this
    process alone; else nothing is written. A signal that arrives while a step is done
    ends the run after that step, which is saved; a second one, or one that arrives
    before or after the training, ends it at once. If something raises, what the steps
    before have learned is saved; but between two updates of a step nothing is, as its
    parameters would be those of half a step.
    """

    def __init__(self, cfg, policy=None, state=None):
        self.cfg = cfg
        self.policy = policy
        self.state = state or {"step": 0, "sizes": {}}
        self.out = None  # the folder
        self.rows = []  # of the training steps, from this process alone
        self.ending = "finished"  # or "not finite", or the name of a signal
        self.stepping = False  # a signal waits
        self.updating = False  # some of a step's updates were made, and not all
        self.last_save = time.time()

    def __enter__(self):
        out = self.cfg.out or new_name(self.cfg)
        if self.cfg.steps < self.state["step"]:
            raise UserError(f"--steps {self.cfg.steps}, but the run in {out} has done "
                            f"{self.state['step']} already: give more")
        os.makedirs(out, exist_ok=True)
        self.lock = filelock.FileLock(os.path.join(out, ".lock"))
        try:
            self.lock.acquire(blocking=False)
        except filelock.Timeout:
            raise UserError(f"another process works on {out}: wait for it, or name another "
                            "--out") from None
        self.out = out
        for path in self.logs():  # what was logged after the checkpoint
            cut_file(path, self.state["sizes"].get(os.path.basename(path), 0))
        write_json(os.path.join(out, "config.json"), vars(self.cfg))
        self.handlers = hold_signals(self.receive)
        return self

    def __exit__(self, kind, error, trace):
        try:
            if isinstance(error, Exception) and self.rows and not self.updating:
                self.save()
        finally:
            self.write_page()
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
            # A new run that ended before anything was logged.
            empty = not self.logs() and not self.cfg.resume
            with contextlib.suppress(OSError):
                os.remove(self.lock.lock_file)
            self.lock.release()
            if empty:
                shutil.rmtree(self.out, ignore_errors=True)

    def receive(self, number, frame):
        name = signal.Signals(number).name
        if not self.stepping or self.ending != "finished":
            say_in_handler(f"stopped by {name}; {self.way_on()}")
            raise SystemExit(exit_status(name))
        self.ending = name
        say_in_handler("finishing this step, then saving; a second signal stops at once")

    def way_on(self):
        if self.out and os.path.isdir(os.path.join(self.out, "checkpoint")):
            return f"to go on: {resume_command(self.out)}"
        return "there is no checkpoint yet"

    # ---- The steps ----

    def restore(self, optimizer):
        """Give the optimizer the state of the checkpoint, if there is one. From now on
        the run knows when parameters change."""
        if "optimizer" in self.state:
            try:
                optimizer.load_state_dict(self.state.pop("optimizer"))
            except Exception as error:  # a file with something else in it
                raise unreadable(os.path.join(self.out, "checkpoint"), error)
        optimizer.register_step_pre_hook(self.note_update)
        self.optimizer = optimizer

    def note_update(self, *given):
        self.updating = True

    def steps(self, total):
        """The numbers of the steps that are left of `total`. Each must be logged by
        log_step before the next."""
        done = self.state["step"]
        bar = tqdm(range(done + 1, total + 1), "training", initial=done, total=total)
        self.stepping = True
        for step in bar:
            self.started = time.time()
            yield step
            row = self.rows[-1]
            keys = ("reward", "accuracy", "grad_norm")
            bar.set_postfix({key: f"{row[key]:.2f}" for key in keys})
            if self.ending == "finished" and self.count_bad_steps() == MAX_BAD_STEPS:
                self.ending = "not finite"
            ended = self.ending != "finished" or step == total
            if ended or time.time() - self.last_save > SAVE_SECONDS:
                self.save()
            if ended:
                break
        bar.close()
        self.stepping = False

    def count_bad_steps(self):
        """The last steps in a row of which no update was finite."""
        count = 0
        for row in reversed(self.rows):
            if row["skipped"] == 0 or row["grad_norm"] > 0:
                break
            count += 1
        return count

    def compare_tests(self, row):
        """Lines on the test before training and the one after it, of which this is the
        row."""
        with open(os.path.join(self.out, "metrics.jsonl")) as file:
            logged = [json.loads(line) for line in file]
        steps = [each for each in logged if "split" not in each]
        if steps and all(step["equal_groups"] == 1 for step in steps):
            return ["no group ever had different rewards, so nothing was learned: README.md, "
                    '"Is it broken?"']
        for before in logged:
            if before["step"] == 0 and before.get("split") == "test":
                return logs.compare_tests(before, row, self.cfg.eval_samples)
        return []

    def check_ending(self):
        """Raise UserError if the steps were ended early, or in the last one a signal came:
        then the test is left out."""
        if self.ending == "not finite":
            raise UserError(
                f"no update of the last {MAX_BAD_STEPS} steps was finite: see their rows "
                f"and completions in {self.out}; a lower --lr may help. None of them "
                f"changed the parameters, which are in {self.out}/checkpoint")
        if self.ending != "finished":
            raise UserError(f"stopped by {self.ending}; {self.way_on()}",
                            exit_status(self.ending))

    # ---- Logs ----

    def logs(self):
        paths = [os.path.join(self.out, name) for name in LOGS]
        return list(filter(os.path.exists, paths))

    def log_step(self, step, completions, updates, seconds_update):
        """Log a step's row with one group, whose rewards differ if there is such a one,
        and with all completions if an update was skipped."""
        size = self.cfg.group_size
        groups = [completions[i:i + size] for i in range(0, len(completions), size)]
        unequal = [group for group in groups if any(c.advantage for c in group)]
        seconds = time.time() - self.started
        tokens = sum(sum(c.mask) for c in completions)
        row = {"step": step, "reward": mean(c.reward for c in completions),
               **logs.describe(completions), **logs.summarize(updates),
               "equal_groups": 1 - len(unequal) / len(groups),
               "tokens_per_second": tokens / (seconds - seconds_update),
               "seconds_sampling": seconds - seconds_update,
               "seconds_update": seconds_update, "seconds": seconds}
        if torch.cuda.is_available():
            row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        self.log(row, completions if row["skipped"] else [*unequal, *groups][0])
        self.rows.append(row)
        self.updating = False
        if self.out:
            self.sizes = {os.path.basename(path): os.path.getsize(path) for path in self.logs()}

    def log(self, row, completions):
        """Add the row to metrics.jsonl, and the completions, whole, to samples.jsonl."""
        samples = []
        for c in completions:
            samples.append({"step": row["step"], "split": row.get("split", "train"),
                            "question": c.problem.question, "answer": c.problem.answer,
                            "completion": c.transcript, **logs.verdict_of(c)})
        self.append("metrics.jsonl", [row])
        self.append("samples.jsonl", samples)

    def log_evaluation(self, row, completions, groups):
        """Log an evaluation, and what the policy and the weights say of each token of
        some groups: for each completion (c, logps, weights), both (T,)."""
        self.log(row, completions)
        for group in groups if self.out else []:
            problem = group[0][0].problem
            shown_tokens = [logs.show_tokens(self.policy.tokenizer, *each) for each in group]
            self.append("tokens.jsonl", [{"step": row["step"], "question": problem.question,
                                          "answer": problem.answer,
                                          "completions": shown_tokens}])
        self.write_page()
        self.started = time.time()  # an evaluation is no part of a step's time

    def append(self, name, rows):
        """What JSON does not know, such as a set, is written as its text."""
        if self.out:
            lines = [json.dumps(row, default=str) + "\n" for row in rows]
            with open(os.path.join(self.out, name), "a") as file:
                file.writelines(lines)

    def write_page(self):
        """A page is made from the logs, at any time: it never costs a run."""
        if self.out and self.logs():
            try:
                page.write(self.out)
            except Exception as error:
                say(f"no report.html was written: {first_line(error)}")

    # ---- Checkpoints ----

    def save(self):
        """Write OUT/checkpoint: model, tokenizer, optimizer.pt, and state.json with the
        step and the sizes of the logs after it, to which a resumed run cuts them. Random
        states are not needed, as what a step draws is a function of seed and step."""
        step = self.rows[-1]["step"]
        if self.out is None or self.state["step"] == step:
            return
        try:
            with whole_folder(os.path.join(self.out, "checkpoint")) as new:
                models.save_model(new, self.policy.model, self.policy.tokenizer)
                torch.save(self.optimizer.state_dict(), os.path.join(new, "optimizer.pt"))
                write_json(os.path.join(new, "state.json"),
                           {"step": step, "sizes": self.sizes})
        except Exception as error:  # no space, no permission: each library has its own
            raise UserError(
                f"cannot write the checkpoint of step {step} to {self.out} "
                f"({first_line(error)}): make room; {self.way_on()}")
        self.state["step"] = step
        self.last_save = time.time()


def read_checkpoint(out):
    """(model, tokenizer, state) of the newest checkpoint of a run, state: its step, the
    sizes of the logs, the optimizer's state. Raises UserError if there is none, or if it
    cannot be read, and changes nothing."""
    folder = os.path.join(out, "checkpoint")
    if not os.path.isdir(folder):
        folder = f"{folder}.before"  # the program was stopped between two renames
    if not os.path.isdir(folder):
        raise UserError(f"--out {out} has no checkpoint to go on from: start another run, "
                        "in another folder")
    try:
        model, tokenizer = models.read_model(folder, local=True)
        state = read_json(os.path.join(folder, "state.json"))
        path = os.path.join(folder, "optimizer.pt")
        sizes = {name: int(size) for name, size in state["sizes"].items()}
        state = {"step": int(state["step"]), "sizes": sizes,
                 "optimizer": torch.load(path, "cpu", weights_only=True)}
    except Exception as error:  # a torn file, too little memory: each has its own type
        raise unreadable(folder, error)
    print(f"resuming after step {state['step']}, from {folder}")
    return model, tokenizer, state


def unreadable(folder, error):
    before = f"{folder}.before"
    hint = f"; if you delete it, --resume goes on from {before}" if os.path.isdir(before) else ""
    return UserError(f"{folder} cannot be read ({first_line(error)}){hint}")


def read_settings(settings, run):
    """The settings in the config.json of a run's folder, a dict; {} if there is none that
    a run wrote. settings: the dataclass."""
    try:
        saved = read_json(os.path.join(run, "config.json"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{run}/config.json cannot be read ({first_line(error)}): name "
                        "another run") from None
    if not isinstance(saved, dict) or not {"task", "shaping", "seed"} <= saved.keys():
        return {}  # another program's
    known = settings.__dataclass_fields__
    return {name: value for name, value in saved.items() if name in known}


def find_saved(settings, given):
    """The settings of the run that those given name, a dict; {} if they name none.
    --resume --out RUN goes on with the run's settings but for those that are
    resumable. --model RUN/checkpoint begins with them, if the run had the same task."""
    out = given.get("out", "")
    if given.get("resume"):
        saved = read_settings(settings, out) if out else {}
        if not saved:
            runs = sorted(glob.glob("runs/*"), key=os.path.getmtime)
            problem = f"{out} is no run{suggest(out, runs)}" if out else "there is none"
            newest = ", ".join(runs[-5:]) or "none"
            raise UserError(f"--resume needs --out and the folder of a run, but {problem}; "
                            f"the newest under runs/: {newest}")
        for name, value in given.items():
            resumable = settings.__dataclass_fields__[name].metadata["resumable"]
            if not resumable and name in saved and saved[name] != value:
                raise UserError(f"--resume goes on with the run's own --{name} "
                                f"{shown(saved[name])}: leave it out, or start another run")
        return saved
    folder = os.path.dirname(os.path.abspath(given.get("model") or "-/-"))
    saved = read_settings(settings, folder)
    if not saved or given.get("task", saved["task"]) != saved["task"]:
        return {}
    print(f"settings that are not given are those of {folder}/config.json")
    return {**saved, "out": "", "resume": False, "eval_only": False}


# ---- Files, folders, signals ----

def write_json(path, content):
    with open(f"{path}.tmp", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.tmp", path)  # whole, or not at all


def read_json(path):
    with open(path) as file:
        return json.load(file)


def new_name(cfg):
    """A name for a run's new folder."""
    kind = "test" if cfg.eval_only else cfg.shaping
    start = f"runs/{cfg.task}-{kind}-seed{cfg.seed}"
    return f"{start}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def whole_folder(path):
    """A folder to write into, which becomes `path` when the block is left without an
    error. What was there before becomes PATH.before: whatever stops the program, even
    while it writes, one of the two is whole."""
    shutil.rmtree(f"{path}.tmp", ignore_errors=True)
    os.makedirs(f"{path}.tmp")
    yield f"{path}.tmp"
    if os.path.isdir(path):
        shutil.rmtree(f"{path}.before", ignore_errors=True)
        os.rename(path, f"{path}.before")
    os.rename(f"{path}.tmp", path)


def cut_file(path, size):
    if os.path.getsize(path) > size:
        os.truncate(path, size)


def hold_signals(handler):
    """Let the handler have SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal).
    Returns those that it replaces, number -> handler. A signal that the user has set to
    be ignored, as nohup does, stays ignored; and Python knows signals in its main thread
    alone."""
    before = {}
    if threading.current_thread() is not threading.main_thread():
        return before
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before
