"""The flags of search/. grpo_sg.Config inherits them if the folder is present."""
import dataclasses

from support.program import setting

GROUP = "questions with a search tool"


@dataclasses.dataclass
class Settings:
    max_turns: int = setting(
        GROUP, 2, "searches that are answered, before one last turn; more is slower", least=0)
    retriever: str = setting(
        GROUP, "", "URL of a search server with Search-R1's protocol; without one, search "
                   "the questions' passages",
        resumable=True)
