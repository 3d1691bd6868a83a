"""Measures of the house, counted from its source: `python -m tests.house_measures [FOLDER]` prints
them.

Only the text of the files is read, so the checkout of an older revision can be measured too.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "dtml", "translation", "db")
# Nodes of the syntax tree for each line of code.
DENSEST_PACKAGE = 10
DENSEST_FOLDER = 12  # formulas in arrays are denser than what calls them
DENSEST_FILE = 14
LAYOUT = {  # tokens that are no code
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
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


def folder_sizes(found: Mapping[str, Path]) -> Counter[str]:
    """Return the number of modules of each folder, without `__init__.py`."""
    return Counter(
        str(Path(*name.split(".")[:-1]))
        for name, file in found.items()
        if file.name != "__init__.py"
    )


def function_lines(file: Path) -> dict[str, int]:
    """Return the lines of each function of a file, by its name and where it begins."""
    return {
        f"{node.name}, line {node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def code_lines(source: str) -> int:
    """Return the lines that hold code: no blank one, no comment and no docstring."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def density(files: Iterable[Path]) -> float:
    """Return the nodes of the syntax tree for each line of code: how much a reader meets in one."""
    sizes = [_nodes_and_lines(file) for file in files]
    nodes = sum(nodes for nodes, _ in sizes)
    lines = sum(lines for _, lines in sizes)
    return nodes / max(1, lines)


@cache
def _nodes_and_lines(file: Path) -> tuple[int, int]:
    """Return how many nodes of the syntax tree and lines of code a file has."""
    source = file.read_text(encoding="utf-8")
    nodes = sum(1 for _ in ast.walk(ast.parse(source)))
    return nodes, code_lines(source)


def package_densities(root: Path = ROOT) -> dict[str, float]:
    """Return the nodes for each line of code of each package, with all its folders."""
    return {package: density((root / package).rglob("*.py")) for package in PACKAGES}


def folder_densities(root: Path = ROOT) -> dict[str, float]:
    """Return the nodes for each line of code of each folder, without the folders in it."""
    folders: dict[str, list[Path]] = {}
    for file in modules(root).values():
        folders.setdefault(str(file.parent.relative_to(root)), []).append(file)
    return {folder: density(files) for folder, files in sorted(folders.items())}


def file_densities(root: Path = ROOT) -> dict[str, float]:
    """Return the nodes for each line of code of every file of the product, the densest first."""
    files = {str(file.relative_to(root)): density([file]) for file in modules(root).values()}
    return dict(sorted(files.items(), key=lambda item: -item[1]))


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


def imported_once(graph: Imports, found: Mapping[str, Path]) -> dict[str, str]:
    """Return the modules that exactly one other imports, and their importer."""
    importers: dict[str, list[str]] = {name: [] for name in found}
    for name, used in graph.items():
        for each in used:
            importers[each].append(name)
    real = (name for name, file in found.items() if file.name != "__init__.py")
    return {name: importers[name][0] for name in real if len(importers[name]) == 1}


def imported_once_from_elsewhere(graph: Imports, found: Mapping[str, Path]) -> dict[str, str]:
    """Return the modules whose only importer lies in another folder than
    theirs, and this importer.
    """
    return {
        name: user
        for name, user in imported_once(graph, found).items()
        if found[name].parent != found[user].parent
    }


def strangers(graph: Imports, found: Mapping[str, Path]) -> dict[str, str]:
    """Return the modules that lie with strangers, and their importer.

    One module alone imports such a module, from another folder; and it imports no module that lies
    beside it.
    """
    return {
        name: user
        for name, user in imported_once_from_elsewhere(graph, found).items()
        if not any(found[used].parent == found[name].parent for used in graph[name])
    }


def contracts_kept(root: Path = ROOT) -> str:
    """Return what import-linter counts, such as `5 kept, 0 broken`."""
    program = Path(sys.executable).with_name("lint-imports")
    said = subprocess.run(
        [program, "--no-cache"], cwd=root, capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"\d+ kept, \d+ broken", said)
    return found[0] if found else "not checked"


def measures(root: Path = ROOT) -> Iterator[tuple[str, object]]:
    """Yield each measure's name and value."""
    found = modules(root)
    graph = imports(found)
    lines = {name: file.read_text(encoding="utf-8").count("\n") for name, file in found.items()}
    longest = max(
        (count, f"{name}.{function}")
        for name, file in found.items()
        for function, count in function_lines(file).items()
    )
    yield "modules", sum(file.name != "__init__.py" for file in found.values())
    yield "product lines of Python", sum(lines.values())
    for package, nodes_a_line in package_densities(root).items():
        name = f"nodes a line of code, package {package} (at most {DENSEST_PACKAGE})"
        yield name, f"{nodes_a_line:.1f}"
    for folder, nodes_a_line in folder_densities(root).items():
        yield f"nodes a line of code, {folder} (at most {DENSEST_FOLDER})", f"{nodes_a_line:.1f}"
    for file, nodes_a_line in islice(file_densities(root).items(), 10):
        yield f"nodes a line of code, {file} (at most {DENSEST_FILE})", f"{nodes_a_line:.1f}"
    yield (
        "product lines of SQL files",
        sum(_lines(file) for each in PACKAGES for file in (root / each).rglob("*.sql")),
    )
    yield "most modules in a folder (at most 15)", _most(folder_sizes(found))
    yield "most lines in a file (at most 500)", _most(lines)
    yield "most lines in a function (under 60)", f"{longest[0]} ({longest[1]})"
    yield "words of the README", len((root / "README.md").read_text(encoding="utf-8").split())
    yield "cycles of imports", len(cycles(imports(found, at_once=True)))
    yield "cycles of imports, those within functions too", len(cycles(graph))
    yield "contracts of imports", contracts_kept(root)
    yield "modules with one importer", len(imported_once(graph, found))
    yield (
        "modules with one importer, in another folder",
        len(imported_once_from_elsewhere(graph, found)),
    )
    yield (
        "modules with one importer, in another folder, that use nothing beside them (at most 20)",
        len(strangers(graph, found)),
    )


def _lines(file: Path) -> int:
    return file.read_text(encoding="utf-8").count("\n")


def _most(counts: Mapping[str, int]) -> str:
    name = max(counts, key=counts.__getitem__)
    return f"{counts[name]} ({name})"


def table(rows: Iterable[tuple[str, object]]) -> str:
    return "\n".join(
        ["| measure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    )


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT
    print(table(measures(root)))  # noqa: T201 - it is what is asked for
