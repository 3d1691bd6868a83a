"""Measures of the house, counted from its source: `python -m tests.house_measures [COMMIT...]`.

Each commit is read from git; without one, the working tree is measured.
"""

import ast
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "dtml", "db", "translation")
MEASURED = (*PACKAGES, "benchmarks", "tests")
WORDS = (".md", ".sql", ".toml", ".html", ".js")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
Imports = Mapping[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of the product by the dotted names of their modules."""
    files = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
    return {dotted(file.relative_to(root)): file for file in files}


def dotted(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(found: Mapping[str, Path], *, at_once: bool = False) -> dict[str, set[str]]:
    """Return which modules of the product each imports, but not for its types alone.

    `at_once`: only what is imported when the module is, and not what its functions import when they
    are called.
    """
    return {name: set(_imported(file, found, at_once)) - {name} for name, file in found.items()}


def _imported(file: Path, found: Mapping[str, Path], at_once: bool) -> Iterator[str]:
    for node in _executed(ast.parse(file.read_text(encoding="utf-8")), at_once):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in found)
        elif isinstance(node, ast.ImportFrom) and node.module in found:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in found else node.module


def _executed(tree: ast.AST, at_once: bool) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, without what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        yield from _executed(node, at_once)


def cycles(graph: Imports) -> list[list[str]]:
    """Return the sets of modules that import each other: the strongly connected
    components of two and more.
    """
    reached = {name: _reached(graph, name) for name in graph}
    together = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph
    }
    return sorted(sorted(each) for each in together if len(each) > 1)


def _reached(graph: Imports, start: str) -> set[str]:
    seen, waiting = {start}, deque([start])
    while waiting:
        new = graph[waiting.popleft()] - seen
        seen |= new
        waiting.extend(new)
    return seen


def texts(commit: str | None = None, root: Path = ROOT) -> dict[str, str]:
    """Return the text of each file that git tracks, at a commit or in the working tree."""

    def git(*words: str, given: str | None = None) -> bytes:
        asked = None if given is None else given.encode()
        return subprocess.run(
            ["git", *words], cwd=root, input=asked, capture_output=True, check=True
        ).stdout

    if commit is None:
        names = [name for name in git("ls-files").decode().splitlines() if (root / name).exists()]
        return {
            name: (root / name).read_text(encoding="utf-8")
            for name in names
            if Path(name).suffix in (".py", *WORDS)
        }
    listed = git("ls-tree", "-r", "--name-only", commit).decode().splitlines()
    names = [name for name in listed if Path(name).suffix in (".py", *WORDS)]
    answer = git("cat-file", "--batch", given="".join(f"{commit}:{name}\n" for name in names))
    found, at = {}, 0
    for name in names:
        header_end = answer.index(b"\n", at)
        size = int(answer[at:header_end].split()[2])
        found[name] = answer[header_end + 1 : header_end + 1 + size].decode()
        at = header_end + size + 2
    return found


def measures(files: Mapping[str, str]) -> dict[str, Counter[str]]:
    """Return for each package: nodes of the syntax tree, modules, functions, private functions
    with one caller in their file, lines of docstrings, and errors raised with a message.
    """
    counts = {package: Counter[str]() for package in MEASURED}
    for name, source in files.items():
        package = name.split("/")[0]
        if not name.endswith(".py") or package not in counts:
            continue
        nodes = list(ast.walk(ast.parse(source)))
        functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
        named = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        documented = (
            node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS)
        )
        counts[package] += Counter(
            {
                "nodes": len(nodes),
                "modules": not name.endswith("__init__.py"),
                "functions": len(functions),
                "private, one caller": sum(
                    each.name.startswith("_")
                    and not each.name.startswith("__")
                    and named[each.name] == 1
                    for each in functions
                ),
                "docstring lines": sum(
                    text.count("\n") + 1
                    for text in map(ast.get_docstring, documented)
                    if text is not None
                ),
                "error messages": sum(
                    isinstance(node, ast.Raise)
                    and isinstance(node.exc, ast.Call)
                    and bool(node.exc.args)
                    for node in nodes
                ),
            }
        )
    return counts


def words(files: Mapping[str, str]) -> Counter[str]:
    """Return the words of pages, SQL, TOML, templates and scripts."""
    return Counter(
        {
            suffix: sum(len(text.split()) for name, text in files.items() if name.endswith(suffix))
            for suffix in WORDS
        }
    )


def table(commits: Sequence[str | None], root: Path = ROOT) -> Iterator[str]:
    """Yield the lines of a Markdown table: a row for each package and commit."""
    columns = [
        "nodes",
        "modules",
        "functions",
        "private, one caller",
        "docstring lines",
        "error messages",
    ]
    yield f"| package | commit | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 2) + "|"
    read = {commit or "working tree": texts(commit, root) for commit in commits}
    counted = {commit: measures(files) for commit, files in read.items()}
    for counts in counted.values():
        counts["product"] = sum((counts[each] for each in PACKAGES), Counter())
    for package in (*PACKAGES, "product", "benchmarks", "tests"):
        for commit, counts in counted.items():
            cells = (f"{counts[package][column]:,}" for column in columns)
            yield f"| {package} | {commit} | {' | '.join(cells)} |"
    for commit, files in read.items():
        said = ", ".join(f"{suffix} {count:,}" for suffix, count in words(files).items())
        yield f"\nWords, {commit}: {said}"


if __name__ == "__main__":
    print("\n".join(table(sys.argv[1:] or [None])))  # noqa: T201 - it is what is asked for
