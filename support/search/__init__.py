"""Register the task qa: tasks.py imports this file, so it imports nothing of the project."""

# --data -> the set to test on
QA_PAIRS = {"synthetic": "synthetic", "hotpotqa": "hotpotqa"}


def qa_task(cfg):
    """Make the task qa: see qa.py."""
    from support.search import qa  # imports tasks.py
    return qa.qa_task(cfg)
