"""Add to grpo_sg.Run what a long run needs: a locked folder, resuming, signals, a page."""
import contextlib
import json
import os
import shutil
import signal
import threading
import time

import filelock
import grpo_sg
import torch

from support import advice, models, page
from support.program import exit_status, first_line, resume_command, say, say_in_handler
from tasks import UserError

MAX_BAD_STEPS = 5  # a run ends after this many steps in a row without a finite update
LOGS = ("metrics.jsonl", "samples.jsonl", "tokens.jsonl")
CHECK_FOLDER = "check that the folder exists and that its disk has space"


class Run(grpo_sg.Run):
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
        task: the task, whose first validation problems the page shows token by token.
    """

    def __init__(self, cfg, policy=None, state=None, task=None):
        super().__init__(cfg, policy)
        self.task = task
        self.state = state or {"step": 0, "sizes": {}}
        self.done = self.state["step"]
        self.phase = "outside"     # of the steps; or "in a step", or "between updates"
        self.ending = "finished"   # or "not finite", or the name of a signal
        self.sizes = {}            # of the logs after the last step
        self.handlers = {}         # of signals, before this run's
        self.lock = None
        self.optimizer = None

    def __enter__(self):
        out = self.cfg.out or grpo_sg.new_name(self.cfg)
        if self.cfg.steps < self.done:
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
            if not self.done and os.listdir(out) != [".lock"]:
                self.release(out)
                raise UserError(f"--out {out} is not empty: name another folder")
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
        if before.get("lr", self.cfg.lr) != self.cfg.lr:
            earlier.append({"lr": before["lr"], "last_step": self.done})
        return earlier

    def __exit__(self, kind, error, trace):
        try:
            if isinstance(error, Exception) and self.rows and self.phase != "between updates":
                self.save()
        finally:
            self.write_page()
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
            if not self.logs() and not self.done:  # nothing was logged: leave no files
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
        if self.phase == "outside" or self.ending != "finished":
            lost = self.rows[-1]["step"] - self.done if self.rows else 0
            lost = f"; {lost} finished steps since the last checkpoint are lost" if lost > 0 else ""
            say_in_handler(f"stopped by {name}{lost}; {self.how_to_continue()}")
            raise SystemExit(exit_status(name))
        self.ending = name
        say_in_handler("finishing this step, then saving; a second signal stops at once, "
                       "without saving")

    def how_to_continue(self):
        """Return the command that continues the run, or say that there is no checkpoint."""
        if self.out and find_checkpoint(self.out):
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
        self.phase = "between updates"

    def steps(self, optimizer):
        """Yield the numbers of the remaining steps. Save after the last, every ten minutes,
        and before a signal ends the run. Raises UserError if the run ends early."""
        self.restore(optimizer)
        for step in super().steps(optimizer):
            self.phase = "in a step"
            yield step
            if self.ending == "finished" and self.count_bad_steps() == MAX_BAD_STEPS:
                self.ending = "not finite"
            if self.ending != "finished":
                self.save()
                break
        self.phase = "outside"
        self.bar.close()
        self.check_ending()

    def count_bad_steps(self):
        """Count the latest steps in a row without a finite update."""
        count = 0
        for row in reversed(self.rows):
            if row["skipped"] == 0 or row["grad_norm"] > 0:
                break
            count += 1
        return count

    def check_ending(self):
        """Raise UserError if training ended early or a signal came during the last step."""
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
        super().log_step(row, completions, seconds_update)
        self.phase = "in a step"
        if self.out:
            self.sizes = {os.path.basename(path): os.path.getsize(path) for path in self.logs()}

    def log_evaluation(self, row, completions):
        """Log an evaluation, and the probability and weight of each token in the page's
        groups."""
        super().log_evaluation(row, completions)
        for group in self.watch_tokens() if self.out and self.task else []:
            problem = group[0][0].problem
            shown_tokens = [show_tokens(self.policy.tokenizer, *each) for each in group]
            self.append("tokens.jsonl", [{"step": row["step"], "question": problem.question,
                                          "answer": grpo_sg.as_json(problem.answer),
                                          "completions": shown_tokens}])
        self.write_page()
        self.started = time.time()  # a step's time excludes the evaluation

    @torch.no_grad()
    def watch_tokens(self):
        """Sample a group of completions of each of three fixed validation problems. Returns
        for each group a list of (completion, logps, weights). logps and weights have a number
        for each token (logps has 0 for a tool's tokens)."""
        policy, cfg = self.policy, self.cfg
        completions = grpo_sg.rollout(policy, self.task, self.task.valid[:3], cfg,
                                      n=cfg.group_size, temperature=cfg.temperature,
                                      seed=cfg.seed)
        grpo_sg.set_advantages(completions, cfg.group_size)
        watched = []
        for c in completions:
            batch = grpo_sg.make_batch([c], policy.model.device)
            logps = grpo_sg.compute_logps(policy.model, batch, cfg)[0, len(c.prompt):]
            w = grpo_sg.weigh(logps, cfg)
            watched.append((c, logps, torch.ones_like(logps) if w is None else w))
        return grpo_sg.split_groups(watched, cfg.group_size)

    def report_test(self, row):
        """Print the result of a test, and advice."""
        super().report_test(row)
        if row["step"] == 0 and not self.cfg.eval_only:
            print("\n".join(advice.describe_start(row, self.cfg.eval_samples)))
        elif not self.cfg.eval_only:
            print("\n".join(advice.describe_end(self.out, row, self.cfg.eval_samples)))

    def append(self, name, rows):
        with one_line_if_not_writable(self.out):
            super().append(name, rows)

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
        if not self.out or self.done == step:
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
        self.done = step
        self.last_save = time.time()


def find_checkpoint(out):
    """Return the folder of a run's newest complete checkpoint, or ""."""
    # The second is there if the program was killed between two renames.
    for name in ("checkpoint", "checkpoint.before"):
        if os.path.isdir(os.path.join(out, name)):
            return os.path.join(out, name)
    return ""


def read_checkpoint(out):
    """Read the newest checkpoint of a run.

    Returns:
        (model, tokenizer, state): state has the step, the sizes of the logs, and the
        optimizer's state.

    Raises:
        UserError: if there is no checkpoint or it cannot be read. Changes no file.
    """
    folder = find_checkpoint(out)
    if not folder:
        raise UserError(f"--out {out} has no checkpoint to continue from: start a new run in "
                        "another folder")
    try:
        model, tokenizer = models.read_model(folder)
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
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{run}/config.json cannot be read ({first_line(error)}): name "
                        "a different run") from None
    if not isinstance(saved, dict) or not {"task", "shaping", "seed"} <= saved.keys():
        return {}
    return {name: value for name, value in saved.items() if name in known}


# ---- Rows ----

def show_tokens(tokenizer, c, logps, weights):
    """Return a completion's tokens as text, and their probabilities and weights, rounded
    to four digits."""
    return {"tokens": [tokenizer.decode([token]) for token in c.tokens], "own": c.mask,
            "pi": round_all(logps.exp()), "w": round_all(weights), **grpo_sg.verdict_of(c)}


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
    """Cut a log to the size that the checkpoint recorded. If it is shorter, because a disk lost
    its end, cut off the half row at its end, and say so."""
    with open(path, "rb+") as file:
        kept = file.read(size)
        if len(kept) < size:
            say(f"warning: {path} has lost its last rows: {size - len(kept)} bytes are missing")
            size = kept.rfind(b"\n") + 1
        file.truncate(size)


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
