"""The README's pictures of two explorers: ``python -m book.shots`` draws them again."""

from __future__ import annotations

from pathlib import Path

from course.widgets import AttentionExplorer, Explorer, RowExplorer

ROOT = Path(__file__).parent.parent
FOLDER = Path("book") / "pictures"


def shown() -> dict[str, Explorer]:
    """The two explorers by the name of their picture."""
    sentence = "the cat lay on the mat because it was tired"
    return {
        "row-explorer": RowExplorer(),
        "attention-explorer": AttentionExplorer(sentence=sentence, head=3, row=9),
    }


def markdown(name: str, explorer: Explorer) -> str:
    """The README's line for one picture; its finding is the alt text."""
    return f"![{explorer.title}: {explorer.status}]({(FOLDER / name).as_posix()}.png)"


def main() -> None:
    """Write both pictures, and print the README's lines."""
    (ROOT / FOLDER).mkdir(exist_ok=True)
    for name, explorer in shown().items():
        (ROOT / FOLDER / f"{name}.png").write_bytes(explorer.png())
        print(markdown(name, explorer))


if __name__ == "__main__":
    main()
