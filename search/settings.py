"""The flags of the room search/: grpo_sg.Config inherits them where the room is there."""
import dataclasses

from support.program import setting

GROUP = "questions with a search tool"


@dataclasses.dataclass
class Settings:
    max_turns: int = setting(
        GROUP, 2, "searches that are answered, before one last turn: more is slower", least=0)
    retriever: str = setting(
        GROUP, "", "URL of a search server, as Search-R1's; else the questions' passages",
        resumable=True)
