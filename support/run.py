"""Manage a run: its folder, steps, logs, checkpoints and signals."""
import contextlib
import json
import os
import secrets
import shutil
import signal
import threading
import time

import filelock
import torch
from tqdm import tqdm

from support import models, page
from support.program import (
    UserError, exit_status, first_line, resume_command, say, say_in_handler)

MAX_BAD_STEPS = 5  # a run ends after this many steps in a row without a finite update
SAVE_SECONDS = 600  # time between checkpoints
LOGS = ("metrics.jsonl", "samples.jsonl", "tokens.jsonl")
CHECK_FOLDER = "check that the folder exists and that its disk has space"


class Run:
    """Log, checkpoint and handle signals for `train`.

    As a context manager it creates the run's folder, or takes an empty one, and locks
    it; without `with`, nothing is written. A signal during a step ends the run after
    that step, which is saved. A second signal ends it at once, and so does one before or
    after training. If something raises, the finished steps are saved, unless the error
    comes between two updates of a step, which leaves the parameters half updated.

    Args:
        cfg: the settings.
        policy: a grpo_sg.Policy.
        state: the state of the checkpoint to resume, from `read_checkpoint`.
    """

    def __init__(self, cfg, policy=None, state=None):
        self.cfg = cfg
        self.policy = policy
        self.state = state or {"step": 0, "sizes": {}}
        self.out = None  # the folder
        self.rows = []  # of the training steps of this process
        self.ending = "finished"  # or "not finite", or the name of a signal
        self.stopping = False  # True after the last step
        self.stepping = False  # True while a signal waits for the end of a step
        self.updating = False  # True after some of a step's updates, but not all
        self.last_save = time.time()

    @property
    def logs_tokens(self):
        return self.out is not None

    def __enter__(self):
        out = self.cfg.out or new_name(self.cfg)
        if self.cfg.steps < self.state["step"]:
            raise UserError(f"--steps {self.cfg.steps}, but the run in {out} has already done "
                            f"{self.state['step']}: give a larger number")
        with one_line_if_not_writable(out):
            os.makedirs(out, exist_ok=True)
            self.lock = filelock.FileLock(os.path.join(out, ".lock"))
            try:
                self.lock.acquire(blocking=False)
            except filelock.Timeout:
                raise UserError(f"another process is working in {out}: wait for it, or name "
                                "another --out") from None
            # Check only now: another run may have filled the folder in the meantime.
            if not self.cfg.resume and os.listdir(out) != [".lock"]:
                self.release(out)
                raise UserError(f"--out {out} is not empty: name another folder, or add "
                                "--resume to continue the run in it")
            self.out = out
            for path in self.logs():  # remove what was logged after the checkpoint
                cut_file(path, self.state["sizes"].get(os.path.basename(path), 0))
            write_json(os.path.join(out, "config.json"),
                       {**vars(self.cfg), "earlier_lr": self.list_earlier_rates(out)})
        self.handlers = hold_signals(self.receive)
        return self

    def list_earlier_rates(self, out):
        """Return the earlier learning rates, each with its last step."""
        try:
            before = read_json(os.path.join(out, "config.json"))
        except OSError:  # a new run
            return []
        earlier = before.get("earlier_lr", [])
        if before["lr"] != self.cfg.lr:
            earlier.append({"lr": before["lr"], "last_step": self.state["step"]})
        return earlier

    def __exit__(self, kind, error, trace):
        try:
            if isinstance(error, Exception) and self.rows and not self.updating:
                self.save()
        finally:
            self.write_page()
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
            if not self.logs() and not self.cfg.resume:  # nothing was logged: leave no files
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(self.out, "config.json"))
                shutil.rmtree(os.path.join(self.out, "warm_start"), ignore_errors=True)
            self.release(self.out)

    def release(self, out):
        """Unlock the folder, and delete it if it is empty."""
        with contextlib.suppress(OSError):
            os.remove(self.lock.lock_file)
        self.lock.release()
        with contextlib.suppress(OSError):
            os.rmdir(out)

    def receive(self, number, frame):
        """Handle a signal."""
        name = signal.Signals(number).name
        if not self.stepping or self.ending != "finished":
            say_in_handler(f"stopped by {name}; {self.how_to_continue()}")
            raise SystemExit(exit_status(name))
        self.ending = name
        say_in_handler("finishing this step, then saving; a second signal stops at once")

    def how_to_continue(self):
        """Return the command that continues the run, or say that there is no checkpoint."""
        if self.out and os.path.isdir(os.path.join(self.out, "checkpoint")):
            return f"to continue: {resume_command(self.out)}"
        return "there is no checkpoint yet"

    # ---- The steps ----

    def restore(self, optimizer):
        """Load the checkpoint's state into the optimizer, if there is a checkpoint, and watch
        the optimizer: after its first update, a step is half finished."""
        if "optimizer" in self.state:
            try:
                optimizer.load_state_dict(self.state.pop("optimizer"))
            except Exception as error:  # the file is damaged or from another program
                raise unreadable(os.path.join(self.out, "checkpoint"), error)
            for group in optimizer.param_groups:
                group["lr"] = self.cfg.lr  # --lr may have changed
        optimizer.register_step_pre_hook(self.note_update)
        self.optimizer = optimizer

    def note_update(self, *given):
        self.updating = True

    def steps(self, total):
        """Yield the numbers of the remaining steps, up to `total`."""
        done = self.state["step"]
        self.bar = tqdm(range(done + 1, total + 1), "training", initial=done, total=total)
        self.stepping = True
        for step in self.bar:
            self.started = time.time()
            yield step
        self.stepping = False

    def save_if_due(self):
        """Save if the last checkpoint is old or this step is the last."""
        if self.ending == "finished" and self.count_bad_steps() == MAX_BAD_STEPS:
            self.ending = "not finite"
        last_step = self.rows[-1]["step"] == self.bar.total
        self.stopping = last_step or self.ending != "finished"
        if self.stopping or time.time() - self.last_save > SAVE_SECONDS:
            self.save()
        if self.stopping:
            self.bar.update()
            self.bar.close()
            self.stepping = False

    def count_bad_steps(self):
        """Count the latest steps in a row without a finite update."""
        count = 0
        for row in reversed(self.rows):
            if row["skipped"] == 0 or row["grad_norm"] > 0:
                break
            count += 1
        return count

    def check_ending(self):
        """Raise UserError, which skips the test, if training ended early or a signal came
        during the last step."""
        if self.ending == "not finite":
            raise UserError(
                f"no update of the last {MAX_BAD_STEPS} steps was finite: see their rows "
                f"and completions in {self.out}. None of them changed the parameters, saved "
                f"in {self.out}/checkpoint. A lower learning rate may help: "
                f"{resume_command(self.out)} --lr {self.cfg.lr / 3:.1g}")
        if self.ending != "finished":
            raise UserError(f"stopped by {self.ending}; {self.how_to_continue()}",
                            exit_status(self.ending))

    # ---- Logs ----

    def logs(self):
        """Return the paths of the logs that exist."""
        paths = [os.path.join(self.out, name) for name in LOGS]
        return list(filter(os.path.exists, paths))

    def log_step(self, row, completions, seconds_update):
        """Log a step's row and one group of its completions, if possible one with unequal
        rewards; log all completions if an update was skipped."""
        size = self.cfg.group_size
        groups = [completions[i:i + size] for i in range(0, len(completions), size)]
        unequal = [group for group in groups if any(c.advantage for c in group)]
        seconds = time.time() - self.started
        tokens = sum(sum(c.mask) for c in completions)
        row = {**row, "tokens_per_second": tokens / (seconds - seconds_update),
               "seconds_sampling": seconds - seconds_update,
               "seconds_update": seconds_update, "seconds": seconds}
        if torch.cuda.is_available():
            row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        self.log(row, completions if row["skipped"] else [*unequal, *groups][0])
        self.rows.append(row)
        self.updating = False
        if self.out:
            self.sizes = {os.path.basename(path): os.path.getsize(path) for path in self.logs()}
        keys = ("reward", "accuracy", "grad_norm")
        self.bar.set_postfix({key: f"{row[key]:.2f}" for key in keys})

    def log(self, row, completions):
        """Append the row to metrics.jsonl, and the full completions to samples.jsonl."""
        samples = []
        for c in completions:
            samples.append({"step": row["step"], "split": row.get("split", "train"),
                            "question": c.problem.question, "answer": as_json(c.problem.answer),
                            "completion": c.transcript, **verdict_of(c)})
        self.append("metrics.jsonl", [row])
        self.append("samples.jsonl", samples)

    def log_evaluation(self, row, completions, groups):
        """Log an evaluation, and the probability and weight of each token in some groups,
        as grpo_sg.watch_tokens returns them."""
        self.log(row, completions)
        for group in groups:
            problem = group[0][0].problem
            shown_tokens = [show_tokens(self.policy.tokenizer, *each) for each in group]
            self.append("tokens.jsonl", [{"step": row["step"], "question": problem.question,
                                          "answer": as_json(problem.answer),
                                          "completions": shown_tokens}])
        self.write_page()
        self.started = time.time()  # a step's time excludes the evaluation

    def append(self, name, rows):
        """Append rows of JSON. Values that JSON cannot represent are written with str()."""
        if self.out:
            lines = [json.dumps(row, default=str) + "\n" for row in rows]
            path = os.path.join(self.out, name)
            with one_line_if_not_writable(self.out), open(path, "a") as file:
                file.writelines(lines)

    def write_page(self):
        """Write report.html from the logs. A failure is only a warning."""
        if self.out and self.logs():
            try:
                page.write(self.out)
            except Exception as error:
                say(f"no report.html was written: {first_line(error)}")

    # ---- Checkpoints ----

    def save(self):
        """Write OUT/checkpoint: model, tokenizer, optimizer.pt, and state.json.

        state.json has the step and the sizes of the logs after it; a resumed run truncates
        them to these sizes. Random states are not saved, because all randomness of a step
        is a function of seed and step.
        """
        step = self.rows[-1]["step"]
        if self.out is None or self.state["step"] == step:
            return
        try:
            with whole_folder(os.path.join(self.out, "checkpoint")) as new:
                models.save_model(new, self.policy.model, self.policy.tokenizer)
                torch.save(self.optimizer.state_dict(), os.path.join(new, "optimizer.pt"))
                write_json(os.path.join(new, "state.json"),
                           {"step": step, "sizes": self.sizes})
        except Exception as error:  # no space, no permission: each library raises its own type
            raise UserError(
                f"cannot write the checkpoint of step {step} to {self.out} "
                f"({first_line(error)}): {CHECK_FOLDER}; {self.how_to_continue()}")
        self.state["step"] = step
        self.last_save = time.time()


def read_checkpoint(out):
    """Read the newest checkpoint of a run.

    Returns:
        (model, tokenizer, state): state has the step, the sizes of the logs, and the
        optimizer's state.

    Raises:
        UserError: if there is no checkpoint or it cannot be read. Changes no file.
    """
    folder = os.path.join(out, "checkpoint")
    if not os.path.isdir(folder):
        folder = f"{folder}.before"  # the program was killed between two renames
    if not os.path.isdir(folder):
        raise UserError(f"--out {out} has no checkpoint to continue from: start a new run in "
                        "another folder")
    try:
        model, tokenizer = models.read_model(folder, local=True)
        state = read_json(os.path.join(folder, "state.json"))
        path = os.path.join(folder, "optimizer.pt")
        sizes = {name: int(size) for name, size in state["sizes"].items()}
        state = {"step": int(state["step"]), "sizes": sizes,
                 "optimizer": torch.load(path, "cpu", weights_only=True)}
    except Exception as error:  # a truncated file, too little memory: each has its own type
        raise unreadable(folder, error)
    print(f"resuming after step {state['step']}, from {folder}")
    return model, tokenizer, state


def unreadable(folder, error):
    before = f"{folder}.before"
    hint = "start a new run in another folder"
    if os.path.isdir(before):
        hint = f"if you delete it, --resume continues from {before}"
    return UserError(f"{folder} cannot be read ({first_line(error)}): {hint}")


def read_settings(run, known):
    """Read the known settings from the config.json in a run's folder, as a dict. Returns
    {} if there is no such file or another program wrote it."""
    try:
        saved = read_json(os.path.join(run, "config.json"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{run}/config.json cannot be read ({first_line(error)}): name "
                        "a different run") from None
    if not isinstance(saved, dict) or not {"task", "shaping", "seed"} <= saved.keys():
        return {}
    return {name: value for name, value in saved.items() if name in known}


# ---- Rows ----

def verdict_of(c):
    return {"reward": c.reward, "advantage": c.advantage, "correct": c.correct,
            "formatted": c.formatted, "truncated": c.truncated, "solved": c.solved}


def show_tokens(tokenizer, c, logps, weights):
    """Return a completion's tokens as text, and their probabilities and weights, rounded
    to four digits."""
    return {"tokens": [tokenizer.decode([token]) for token in c.tokens], "own": c.mask,
            "pi": round_all(logps.exp()), "w": round_all(weights), **verdict_of(c)}


def as_json(answer):
    """Return the answer, or its text if JSON cannot represent it."""
    try:
        json.dumps(answer, default=str)
    except (TypeError, ValueError):  # a key that is not a string
        return str(answer)
    return answer


def round_all(x):
    return [float(f"{value:.4g}") for value in x.tolist()]


# ---- Files, folders, signals ----

@contextlib.contextmanager
def one_line_if_not_writable(out):
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {out} ({first_line(error)}): {CHECK_FOLDER}, or name "
                        "another --out") from None


def write_json(path, content):
    with open(f"{path}.tmp", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.tmp", path)  # atomic


def read_json(path):
    with open(path) as file:
        return json.load(file)


def new_name(cfg):
    """Make a name for a new run's folder."""
    kind = "test" if cfg.eval_only else cfg.shaping
    start = f"runs/{cfg.task}-{kind}-seed{cfg.seed}"
    return f"{start}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def whole_folder(path):
    """Yield a new folder, and rename it to `path` if the block raises nothing. The previous
    folder becomes PATH.before, so one of them is complete even if the program is killed."""
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
    """Install a handler for SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal).
    Returns the replaced handlers as a dict number -> handler. Ignored signals (under nohup)
    stay ignored. Does nothing outside the main thread, because Python handles signals only
    there."""
    before = {}
    if threading.current_thread() is not threading.main_thread():
        return before
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before
