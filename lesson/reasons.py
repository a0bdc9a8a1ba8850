"""Do the steps before a right answer prove it?"""
import re

# A step of a tiny model's solution: "Ada, clearly: KKK NKN." K is a knight, N a knave.
STEP = re.compile(r"(\w+)(?:, [a-z]+)?: ([KN]+(?: [KN]+)*)\.(?: |$)")


def read_thoughts(response):
    """Return what stands between <think> and </think>, with single spaces."""
    thoughts = response.partition("</think>")[0]
    return " ".join(thoughts.split()).removeprefix("<think>").strip()


def find_fault(response, solution):
    """Return the first fault in a response's steps, or None if they leave no other answer.

    Each step must list the combinations that fit the statements so far, each once, in any order,
    and the last step must list only one. Nothing else may stand among the steps.

    Args:
        response: in the correct format.
        solution: the worked solution of the same puzzle, with a step for each speaker.
    """
    thoughts, at, left = read_thoughts(response), 0, ()
    for name, words in STEP.findall(read_thoughts(solution)):
        if at == len(thoughts):
            break
        step = STEP.match(thoughts, at)
        if not step or step[1] != name or len(set(step[2].split())) < len(step[2].split()):
            return "other text"
        left, listed, at = set(words.split()), set(step[2].split()), step.end()
        if listed != left:
            return ("both" if listed - left and left - listed else
                    "combination lost" if left - listed else "one too many")
    if at < len(thoughts):
        return "other text"
    return None if len(left) == 1 else "step missing"
