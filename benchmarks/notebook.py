"""Make the notebook of the first analysis from its script: python -m benchmarks.notebook."""

import json
import re
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("first_analysis.py")
CELL = re.compile(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", re.DOTALL | re.MULTILINE)


def notebook_of(script: str) -> dict[str, Any]:
    """Return the notebook, nbformat 4.5, of a script.

    Its cells begin with `# %%` or `# %% [markdown]`.
    """
    cells: list[dict[str, Any]] = []
    for markdown_mark, text in CELL.findall(script):
        lines = text.strip("\n").splitlines()
        if markdown_mark:
            lines = [line[1:].removeprefix(" ") for line in lines if line.startswith("#")]
        cell: dict[str, Any] = {
            "cell_type": "markdown" if markdown_mark else "code",
            "id": f"cell-{len(cells)}",
            "metadata": {},
            "source": [f"{line}\n" for line in lines[:-1]] + lines[-1:],
        }
        if not markdown_mark:
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    notebook = notebook_of(SCRIPT.read_text(encoding="utf-8"))
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    SCRIPT.with_suffix(".ipynb").write_text(f"{text}\n", encoding="utf-8")
