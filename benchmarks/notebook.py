"""Make the notebook of the first analysis from its script: python -m benchmarks.notebook."""

import json
import re
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("first_analysis.py")


def notebook_of(script: str) -> dict[str, Any]:
    """Return the notebook, nbformat 4.5, of a script.

    Its cells begin with `# %%` or `# %% [markdown]`.
    """
    cells: list[dict[str, Any]] = []
    for kind, text in re.findall(
        r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", script, re.DOTALL | re.MULTILINE
    ):
        lines = text.strip("\n").splitlines()
        if kind:
            lines = [line[1:].removeprefix(" ") for line in lines if line.startswith("#")]
        source = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
        cell = {
            "cell_type": "markdown" if kind else "code",
            "id": f"cell-{len(cells)}",
            "metadata": {},
            "source": source,
        }
        cells.append(cell if kind else cell | {"execution_count": None, "outputs": []})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    made = json.dumps(notebook_of(SCRIPT.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
    SCRIPT.with_suffix(".ipynb").write_text(f"{made}\n", encoding="utf-8")
