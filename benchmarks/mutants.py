"""Generate the mutants of a module: its source with one thing changed, by mutmut's operators.

mutmut's own runner leaves out what it cannot put behind a trampoline: decorated functions (every
property) and all that runs at import (constants, defaults of dataclasses). Here its operators
change those too.
"""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor, OuterFunctionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string
from mutmut.mutation.pragma_handling import get_ignored_lines


@dataclass(frozen=True)
class Mutant:
    """One change of a module.

    `function` is the dotted name of the function or method around it, empty outside of them;
    `inside` says whether it lies in that function's body, so that nothing needs to be imported
    again. `lines` are those of its statement. `before` and `after` are the statements that differ,
    each written in one line and without comments: they name the mutant however the file is
    formatted.
    """

    module: str
    function: str
    inside: bool
    lines: range
    before: str
    after: str
    source: str


TYPES = m.Subscript(m.Name("Float") | m.Name("Int") | m.Name("Bool") | m.Name("Literal"))


def _one_string(node: cst.BaseString) -> Iterator[cst.BaseString]:
    """Yield only the first change of a string: mutmut's other two only change its case."""
    yield from islice(operator_string(node), 1)


OPERATORS = [
    (kind, _one_string if change is operator_string else change)
    for kind, change in mutation_operators
]


class _Everything(MutationVisitor):
    """mutmut's visitor, but into decorated functions too, and not into types beside annotations."""

    METADATA_DEPENDENCIES = (PositionProvider, OuterFunctionProvider)

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            return False
        if m.matches(node, TYPES):
            return True
        return bool(super()._skip_node_and_children(node))


def mutants(module: str, source: str) -> list[Mutant]:
    """Return every mutant of a module's source that compiles, once, in the order of lines."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Everything(OPERATORS, get_ignored_lines(module, source, wrapper))
    tree = wrapper.visit(visitor)
    positions = wrapper.resolve(PositionProvider)
    parsed = ast.parse(source)
    mutant_by_source: dict[str, Mutant] = {}
    for mutation in visitor.mutations:
        line = positions[mutation.original_node].start.line
        changed = tree.deep_replace(mutation.original_node, mutation.mutated_node).code
        if changed in mutant_by_source or not _compiles(changed):
            continue
        function, inside = _place(parsed, line)
        before, after = _difference(source, changed)
        mutant_by_source[changed] = Mutant(
            module=module,
            function=function,
            inside=inside,
            lines=_statement(parsed, line),
            before=before,
            after=after,
            source=changed,
        )
    return sorted(mutant_by_source.values(), key=lambda mutant: mutant.lines.start)


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def statements(source: str) -> list[str]:
    """Return the lines of a module as Python itself writes them: a simple statement is one line."""
    return ast.unparse(ast.parse(source)).splitlines()


def _difference(source: str, changed: str) -> tuple[str, str]:
    """Return the statements that differ, as they are in each of two sources."""
    lines = list(difflib.ndiff(statements(source), statements(changed)))
    before = " ".join(line[2:].strip() for line in lines if line[0] == "-")
    after = " ".join(line[2:].strip() for line in lines if line[0] == "+")
    return before, after


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield functions and methods with their dotted names, not those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _place(tree: ast.Module, line: int) -> tuple[str, bool]:
    """Return the function around a line, '' for none, and whether the line is in its body."""
    for name, node in _functions(tree):
        if node.lineno <= line <= (node.end_lineno or 0):
            return name, line >= node.body[0].lineno
    return "", False


def _statement(tree: ast.Module, line: int) -> range:
    """Return the lines of the smallest statement around a line; of a compound one, its head."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    smallest = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    body = getattr(smallest, "body", None)
    last = body[0].lineno - 1 if body else smallest.end_lineno or line
    return range(smallest.lineno, max(last, smallest.lineno) + 1)
