"""Test that the page's three lines compute the weights of grpo_sg.py."""
import pathlib
import re

import torch

from grpo_sg import token_weights

PAGE = pathlib.Path(__file__).with_name("README.md").read_text("utf-8")


def test_the_three_lines_compute_the_weights():
    code, = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    logps = torch.linspace(-6, 0, 60).reshape(3, 20)
    advantages = torch.tensor([1.0, -2.0, 0.5])
    names = {"torch": torch, "logps": logps, "advantages": advantages}
    exec(code, names)
    torch.testing.assert_close(names["weighted"], advantages[:, None] * token_weights(logps))
