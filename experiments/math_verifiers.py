"""Compare verify_math, math-verify (if installed) and other projects' verdicts on labeled answers.

    python -m experiments.math_verifiers               verify/math_pairs.jsonl; a few seconds
    python -m experiments.math_verifiers --outputs F   models' answers, from clones of REPOSITORIES in the
                                                       folder F; a minute. -v prints our wrong verdicts

The 1,389 pairs were written for the tests, and we fixed what they found, so their scores do not measure
unseen answers. The outputs are 18,972 answers of 31 models to MATH, MATH-500, AIME, MATH-Vision
and Odyssey-Math. A hash of the problem assigns it to one of two halves. We looked at the first half before the
last fixes of verify_math, and at the second one after them.

results/math_labels.json has the first 12 digits of the SHA-256 of each right pair (gold, answer), and of each
pair left out: failed extractions, broken golds, and "yes" or "no" where the verdict depends on the question.
All other pairs are wrong. If all verdicts agreed and there was no near miss, their verdict is the label; we
labeled the others by hand, by the rules in verify/README.md. Golds that are the letter of a choice are left
out if the answer is not a letter, because the options decide.
"""
import argparse
import collections
import hashlib
import io
import json
import logging
import os
import re
import statistics
import subprocess
import time
import zipfile

from experiments.analysis import RESULTS
from tasks import ROOT, verify_math
from tasks import final_answer

try:
    import math_verify
    logging.disable(logging.ERROR)
except ImportError:
    print("math-verify is not installed: pip install 'math-verify[antlr4_13_2]' to compare")
    math_verify = None

REPOSITORIES = ("microsoft/rho", "QwenLM/Qwen2.5-Math", "rasbt/reasoning-from-scratch", "mathllm/MathCoder",
                "mathllm/MATH-V", "WildEval/ZeroEval", "protagolabs/odyssey-math",
                "suzgunmirac/dynamic-cheatsheet")
LABELS = RESULTS / "math_labels.json"


def ours(response, gold):
    return verify_math(response, gold).correct


def theirs(response, gold):
    try:
        return bool(math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(response)))
    except Exception:  # an error counts as a rejection
        return False


def show(folder, repository, path):
    """Return a file of a clone, from its newest commit."""
    clone = os.path.join(folder, repository.split("/")[1])
    return subprocess.run(["git", "-C", clone, "show", f"HEAD:{path}"], capture_output=True, check=True).stdout


def lines(folder, repository, path):
    return [json.loads(line) for line in show(folder, repository, path).decode().splitlines()]


# Each yields (model, problem, gold, response, the repository's verdict or None).
def rho(folder):
    archive = zipfile.ZipFile(io.BytesIO(show(folder, "microsoft/rho", "rho-1/outputs.zip")))
    for name in sorted(name for name in archive.namelist() if re.search(r"minerva_math/.*\.jsonl$", name)):
        for line in archive.read(name).decode().splitlines():
            row = json.loads(line)
            text = row["code"][0]
            said = re.findall(r"final answer is ((?:(?!final answer).)*?)\. I hope", text, re.S)
            if said and not re.search(r"(?<!\\)\\(?!\\)", said[-1]):
                said[-1] = said[-1].replace("\\\\", "\\")  # one of the models doubles every backslash
            response = f"\\boxed{{{said[-1].strip()}}}" if said else text
            yield name.split("/")[1], row["question"], row["answer"], response, row["score"][0]


def qwen(folder):
    for row in lines(folder, "QwenLM/Qwen2.5-Math", "evaluation/data/eval_rm_maj_example/math_cot_100.jsonl"):
        for response, verdict in zip(row["code"], row["score"]):
            yield "Qwen2.5-Math-Instruct", row["question"], row["answer"], response, verdict


def rasbt(folder):
    repository, lost = "rasbt/reasoning-from-scratch", (
        r"\\(begin[a-z]|mbox[a-z]|frac(?![{\s]|\d\d?($|[^\d*a-z]))|text[a-z]|sqrt[a-z])")
    problems = json.loads(show(folder, repository, "ch03/01_main-chapter-code/math500_test.json"))
    for model in ("qwen3", "gpt"):
        path = f"ch03/03_advanced-parser/math500_{model}_answers.json"
        for problem, row in zip(problems, json.loads(show(folder, repository, path))):
            if not re.search(lost, row["prediction"]):  # otherwise its braces were stripped
                yield f"rasbt {model}", problem["problem"], row["answer"], row["prediction"], None


def mathcoder(folder):
    for model, path, verdict in (
            ("MathCoder-L-7b", "MATH/MATH_test_result-20230917-2026-correct.jsonl", True),
            ("MathCoder-CL-34b", "minival/minival_test_result-20230913-1211.jsonl", None)):
        for row in lines(folder, "mathllm/MathCoder", f"outs/{model}/{path}"):
            texts = [part["content"] for part in row["debug_result"] if part["role"] == "text"]
            problem = row["debug_result"][1]["content"]
            yield model, problem, row["ground_truth"]["answer"], "\n".join(texts), verdict


def vision(folder):
    problems = {row["id"]: row for row in lines(folder, "mathllm/MATH-V", "data/test.jsonl")}
    for path in ("closed-source/Qwen/Qwen-VL-Max-CoT", "closed-source/Gemini/Gemini-Pro-CoT",
                 "open-source/Internlm/InternLM-XComposer2-VL-CoT"):
        for row in lines(folder, "mathllm/MATH-V", f"outputs/{path}.jsonl"):
            problem = problems[row["id"]]
            yield (path.split("/")[-1], problem["question"], problem["answer"], row.get("response") or "",
                   row.get("correct"))


def zeroeval(folder):
    def first_number(text):
        found = re.search(r"-?\d+(\.\d+)?", text.replace("$", "").replace(",", ""))
        return found and float(found[0])
    for model in ("claude-3-5-sonnet-20241022", "gpt-4o-2024-08-06", "Meta-Llama-3.1-70B-Instruct@hyperbolic",
                  "gemma-2-9b-it", "Qwen2.5-72B-Instruct", "gemini-1.5-pro", "deepseek-v2.5-0908",
                  "o1-mini-2024-09-12"):
        for row in json.loads(show(folder, "WildEval/ZeroEval", f"result_dirs/math-l5/{model}.json")):
            output = row["output"][0]
            said = (re.findall(r'"answer"\s*:\s*"((?:[^"\\]|\\.)*)"', output)
                    or re.findall(r'"answer"\s*:\s*(-?[\d.]+)', output))
            if said:
                answer = said[-1]
                if "\\\\" in answer or "\\" not in answer:
                    try:
                        answer = json.loads(f'"{answer}"')
                    except ValueError:
                        pass
                number = first_number(answer)  # what the repository compares
                yield (model, row["problem"], row["answer"], f"\\boxed{{{answer}}}",
                       number is not None and number == first_number(row["answer"]))


def odyssey(folder):
    repository = "protagolabs/odyssey-math"
    problems = {}
    for row in lines(folder, repository, "final-odyssey-math-with-levels.jsonl"):
        problems.update(row)
    for model in ("gpt-4-o1-preview-solution-clean", "deepseek-v3-Instruct-solution-clean",
                  "gpt-4-1106-preview-solution-clean-new", "gpt-4-turbo-2024-04-09-clean-new",
                  "llama3-70b-solution-clean", "dbrx-instruct-solution-clean",
                  "gpt-3.5-turbo-0125-solution-clean-new", "gpt-4-0125-preview-solution-clean-new",
                  "gpt-4-0613-solution-clean-last"):
        for line in lines(folder, repository, f"jsonl/eval/result-{model}.jsonl"):
            (number, row), = line.items()
            gold = re.sub(r"(\\\\|\s)+$", "", row["true"].replace("\\noindent", "").strip())
            answer = str(row["prediction"]).strip().rstrip('",').lstrip('"')
            answer = re.sub(r'^(answer"\s*:\s*)+', "", answer)  # its own extraction leaves some JSON
            answer = re.sub(r'[\s"}]*\n\s*}\s*$', "", answer).strip().strip('"')
            answer = re.sub(r"\\\\(?=[A-Za-z(),;! {}])", lambda match: "\\", answer).replace("\\*", "*")
            answer += "}" * (answer.count("{") == answer.count("}") + 1)
            if answer not in ("None", "", "Not Found") and max(len(answer), len(gold)) <= 200:
                verdict = {"1": True, "0": False}.get(str(row["is_correct"]).strip())
                problem = number + problems.get(number, {}).get("question", "")
                yield model, problem, gold, f"\\boxed{{{answer}}}", verdict


def cheatsheet(folder):
    for model in ("gpt-4o_EmptyCheatsheet", "claude-3-5-sonnet_DynamicCheatsheet_Cumulative"):
        path = f"results/AIME_2020_2024/{model}.jsonl"
        for row in lines(folder, "suzgunmirac/dynamic-cheatsheet", path):
            if "final_answer" in row:
                yield model, row["input"], row["target"], f"\\boxed{{{row['final_answer']}}}", None


def of_outputs(folder):
    """Return the rows of both halves: {"gold", "response", "key", "repository": its verdict}."""
    halves = {1: [], 2: []}
    for source in (rho, qwen, rasbt, mathcoder, zeroeval, vision, cheatsheet, odyssey):
        for model, problem, gold, response, verdict in source(folder):
            answer = final_answer(response) or response[-200:]
            letter = re.fullmatch(r"[\s$(]*[A-H][\s$).]*", gold)
            if "\\boxed{" not in response or letter and not re.match(
                    r"[\s$({*]*(\\(text|mathrm|textbf|mathbf)\s*\{)?[\s({]*[A-Ha-h]\b(?!\s*[=(^+-])", answer):
                continue
            half = 1 + hashlib.sha256(f"half{problem.strip()}".encode()).digest()[0] % 2
            key = hashlib.sha256(f"{gold}\n{answer}".encode()).hexdigest()[:12]
            halves[half].append({"model": model, "gold": gold, "response": response, "answer": answer,
                                 "key": key, "repository": verdict})
    return halves


def report(name, verdicts, labels, seconds=()):
    """Print how often verdicts agree with labels."""
    wrong = collections.Counter(label for verdict, label in zip(verdicts, labels) if verdict != label)
    time_used = f"; median {1e3 * statistics.median(seconds):.2f} ms, most {1e3 * max(seconds):.1f} ms" if (
        seconds) else ""
    print(f"{name:<22} {len(labels):>6} answers: agrees on {1 - wrong.total() / len(labels):.2%}, accepts "
          f"{wrong[False]} wrong ones of {labels.count(False)} and rejects {wrong[True]} right ones{time_used}")


def timed(verify, rows):
    """Return (verdicts, CPU seconds)."""
    known, verdicts, seconds = {}, [], []
    for row in rows:
        case = row["response"], row["gold"]
        if case not in known:
            started = time.process_time()
            known[case] = verify(*case)
            seconds.append(time.process_time() - started)
        verdicts.append(known[case])
    return verdicts, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--outputs", metavar="F")
    parser.add_argument("-v", action="store_true")
    given = parser.parse_args()
    if given.outputs:
        with open(LABELS) as file:
            known = {name: {*keys} for name, keys in json.load(file).items()}
        parts = {}
        for half, rows in of_outputs(given.outputs).items():
            print(f"half {half}: {len(rows)} answers, {len({row['key'] for row in rows})} different pairs")
            parts[f"half {half}"] = [{**row, "correct": row["key"] in known["right"]} for row in rows
                                     if row["key"] not in known["left out"]]
    else:
        with open(ROOT / "verify" / "math_pairs.jsonl") as file:
            rows = [json.loads(line) for line in file]
        parts = {"first 607 pairs": rows[:607], "other 782 pairs": rows[607:]}
    for part, rows in parts.items():
        labels = [row["correct"] for row in rows]
        verdicts, seconds = timed(ours, rows)
        report(f"ours, {part}", verdicts, labels, seconds)
        if math_verify:
            other, seconds = timed(theirs, rows)
            report("math-verify", other, labels, seconds)
        judged = [row for row in rows if row.get("repository") is not None]
        if judged:
            report("their repositories", [row["repository"] for row in judged],
                   [row["correct"] for row in judged])
        for row, verdict in zip(rows, verdicts) if given.v else ():
            if verdict != row["correct"]:
                print(f"  {'accepts' if verdict else 'rejects'}: gold {row['gold']!r}, "
                      f"{row['response'][-80:]!r}")


if __name__ == "__main__":
    main()
