"""Work that does not fit into a GPU's memory, done in halves: results stay the same, but for rounding.

A batch is a dict of tensors that all have a row for each example. Where not even one row fits, the error
goes on, with a note that says what to change.
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


def halve(settings, name, size, rows):
    """After `rows` rows at once, of a size in the unit of a setting, did not fit: half of it is the setting
    for the rest of the run, which is said. Raises the error again where it was one row."""
    if rows == 1:
        raise
    if size // 2 < getattr(settings, name):
        setattr(settings, name, size // 2)
        tqdm.write(f"out of GPU memory: going on with --{name} {size // 2}", file=sys.stderr)


def in_parts(work, rows, n, settings, generator):
    """work(rows, copies), a list with a result for each row, over parts of --sample_batch rows, joined. Rows
    come in groups of n equal ones, which are given as one with n copies where a whole group fits. A part
    that does not fit is drawn again in smaller ones, from the same random numbers."""
    done = []
    while len(done) < len(rows):
        copies = n if n <= settings.sample_batch else 1
        part = rows[len(done):][:settings.sample_batch // copies * copies]
        state = generator.get_state()
        try:
            done += work(part[::copies], copies)
        except torch.OutOfMemoryError:
            halve(settings, "sample_batch", len(part), len(part))
            generator.set_state(state)
    return done


def halves(batch):
    """The two halves of a batch, by rows."""
    rows = len(batch["ids"])
    return [{key: value[half] for key, value in batch.items()}
            for half in (slice(0, (rows + 1) // 2), slice((rows + 1) // 2, rows))]


def by_rows(work, batch):
    """work(batch), a tensor with a row for each of the batch's; of its halves, one after the other, where
    the whole does not fit."""
    try:
        return work(batch)
    except torch.OutOfMemoryError:
        if len(batch["ids"]) == 1:
            raise
    return torch.cat([by_rows(work, half) for half in halves(batch)])


def until_it_fits(work, batches, settings):
    """work(batches); where they do not fit, again with all of them in halves, and these in halves."""
    while True:
        try:
            return work(batches)
        except torch.OutOfMemoryError:
            halve(settings, "tokens_per_micro_batch", max(batch["ids"].numel() for batch in batches),
                  max(len(batch["ids"]) for batch in batches))
        # Not in the block above: there the error still holds all tensors of the attempt.
        batches = [half for batch in batches for half in halves(batch) if len(half["ids"])]
