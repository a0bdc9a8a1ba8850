"""The ladder climbs, and what it offers to copy is complete."""
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LADDER = (ROOT / "lesson" / "ladder.py").read_text()
pytestmark = pytest.mark.filterwarnings("ignore:std")  # of one seed there is none
ONE_SEED = LADDER.replace("SEEDS = range(3)", "SEEDS = range(1)")


def run(code, path, capsys):
    """Run it as a script. Returns the last number of each line that it prints."""
    assert ONE_SEED != LADDER
    path.write_text(code)
    runpy.run_path(str(path))
    lines = capsys.readouterr().out.splitlines()
    return [float(re.search(r"([\d.]+) ± \S+$", line)[1]) for line in lines]


def test_each_rung_shows_what_it_is_for(tmp_path, capsys):
    rewards = run(ONE_SEED, tmp_path / "ladder.py", capsys)
    reinforce, mean, deviation, broken, clipped, completions, weighted, _, in_one_piece = rewards
    assert max(reinforce, mean, deviation, broken) < min(clipped, completions, weighted)
    assert in_one_piece == weighted


def test_the_cells_to_copy_with_the_sections_that_they_need(tmp_path, capsys):
    code = (ROOT / "grpo_sg.py").read_text()
    sections = "import math, warnings, torch\nimport torch.nn.functional as F\n"
    sections += "from tqdm import tqdm\nfrom transformers import DynamicCache\n"
    sections += code[code.index("# ---- 1."):code.index("# ---- 4.")]
    first, rest = ONE_SEED.split("# %% The loop")
    last = rest[rest.index("# %% The same in one piece"):]
    own = first.replace("from grpo_sg import", "# ") + last
    rewards = run(sections + own, tmp_path / "copied.py", capsys)
    assert rewards[-1] > 0.9
