"""Register the task qa: question answering with a search tool."""
import pathlib

import tasks
from support import tiny


def qa_task(cfg):
    """Make the task qa: see extras.search.task."""
    from extras.search import task  # only when the task is wanted
    return task.qa_task(cfg)


if tasks.TASKS.setdefault("qa", qa_task) is qa_task:
    tiny.PRETRAINED[qa_task] = pathlib.Path(__file__).parent / "pretrained" / "qa"
