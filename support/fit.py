"""Work that does not fit into a GPU's memory, done in halves: results stay the same, but for rounding.

A batch is a dict of tensors that all have a row for each example. Where not even one row fits, the error goes on,
with a note that says what to change.
"""
import contextlib
import sys

import torch
from tqdm import tqdm


@contextlib.contextmanager
def phase(name, advice):
    """Name the phase, and what would help, in an error of the GPU's memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        error.add_note(f"in {name}: {advice}")
        raise


def say_halved(what, size, setting):
    tqdm.write(f"out of GPU memory with {size} {what} at once: going on with half; --{setting} can be set lower",
               file=sys.stderr)


def in_parts(work, items, at_once, generator):
    """work(part) of the items in parts of `at_once`, joined to one list. Where a part does not fit, it is drawn
    again in two, from the same random numbers."""
    done = []
    i = 0
    while i < len(items):
        state = generator.get_state()
        try:
            done += work(items[i:i + at_once])
            i += at_once
        except torch.OutOfMemoryError:
            if at_once == 1:
                raise
            say_halved("prompts", at_once, "sample_batch")
            at_once = (at_once + 1) // 2
            generator.set_state(state)
    return done


def halves(batch):
    """The two halves of a batch, by rows."""
    rows = len(batch["ids"])
    return [{key: value[half] for key, value in batch.items()}
            for half in (slice(0, (rows + 1) // 2), slice((rows + 1) // 2, rows))]


def by_rows(work, batch):
    """work(batch), a tensor with a row for each of the batch's; of its halves, one after the other, where the
    whole does not fit."""
    try:
        return work(batch)
    except torch.OutOfMemoryError:
        if len(batch["ids"]) == 1:
            raise
    return torch.cat([by_rows(work, half) for half in halves(batch)])


def halved(batches):
    """All batches of two rows or more in two, after an update did not fit; none can be halved: raises again."""
    rows = max(len(batch["ids"]) for batch in batches)
    if rows == 1:
        raise
    say_halved("completions in a micro-batch", rows, "tokens_per_micro_batch")
    return [half for batch in batches for half in (halves(batch) if len(batch["ids"]) > 1 else [batch])]
