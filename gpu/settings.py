"""The flags of this room; grpo_sg.Config has them if the room is there."""
from dataclasses import dataclass
from typing import Literal

from support.program import setting

MEMORY = "memory"


@dataclass
class Settings:
    sampler: Literal["auto", "plain"] = setting(
        MEMORY, "auto", "auto: on a GPU a decode step recorded as a CUDA graph, if its "
        "tokens are as good as those of plain",
        resumable=True)
    offload: bool = setting(
        MEMORY, False, "AdamW's averages in host memory, not on the GPU", resumable=True)
