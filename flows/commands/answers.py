"""What a command answers: texts and tables for people, JSON for programs, Markdown for a page."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from dtml.errors import UsageError
from flows.commands.options import FORMS, with_parameters
from flows.console import Part, print_json, say
from flows.settings import print_lines, print_text


@dataclass(frozen=True)
class Answer:
    """What a command found: `parts` for people, `document` for programs, made as they are printed.

    `failure` is raised afterwards.
    """

    parts: Iterable[Part]
    document: object = None
    markdown: Iterable[str] = ()
    csv: str = ""
    failure: Exception | None = None


def answering(*forms: str) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Return a decorator that prints a command's answer, for people or in one of these forms."""

    def decorate(command: Callable[..., Answer]) -> Callable[..., None]:
        @wraps(command)
        def print_answer(*request: Any, **options: Any) -> None:
            asked = [form for form in forms if options.pop(f"as_{form}", False)]
            if len(asked) > 1:
                raise UsageError(f"--{' and --'.join(asked)} cannot be combined: choose one")
            show(command(*request, **options), *asked)

        own = signature(command, eval_str=True).parameters.values()
        more = [
            Parameter(f"as_{form}", Parameter.KEYWORD_ONLY, default=False, annotation=FORMS[form])
            for form in forms
        ]
        return with_parameters(print_answer, [*own, *more])

    return decorate


def show(answer: Answer, form: str = "") -> None:
    """Print an answer in a form, by default for people, and raise its failure."""
    if form == "json":
        print_json(answer.document)
    if form == "csv":
        print_lines([answer.csv])
    for text in answer.markdown if form == "markdown" else ():
        print_text(text)
    for part in () if form else answer.parts:
        say(part)
    if answer.failure is not None:
        raise answer.failure
