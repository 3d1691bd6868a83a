"""Make pages of templates, and sentences of the macros that pages, console and Markdown share."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
import pandas as pd

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, STOCK_RULES
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.pages.charts import PALETTE, TEMPLATES, script
from dtml.pages.figures import FILTERS, NO_INTERVAL, PROTOCOL_WORDS, Row


def link(segments: Sequence[str], query: Mapping[str, object] | None = None) -> str:
    """Return the address of a page of the dashboard, without the parameters that are None."""
    path = "/" + "/".join(quote(segment, safe="") for segment in segments)
    parameters = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(parameters)}" if parameters else path


def apart(row: Row, name: str) -> str | None:
    """Return the verb of `told_apart` about a figure of a row and 0; None without an interval."""
    return told_apart(row[f"{name}_low"], row[f"{name}_high"])


def environment(folder: Path | None = None, *, autoescape: bool = True) -> jinja2.Environment:
    """Return the templates of `folder` and this package, with `figures` as filters, strict."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES] if folder else TEMPLATES),
        autoescape=autoescape,  # noqa: S701 - off for plain text alone
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    settings = partial(json.dumps, indent=2, ensure_ascii=False, default=str)
    templates.filters |= {**FILTERS, "apart": apart, "zip": zip, "settings": settings}
    templates.tests["missing"] = lambda value: bool(pd.isna(value))
    templates.globals |= {
        "palette": PALETTE,
        "live": False,
        "served": False,
        "link": link,
        "minimum": MINIMUM_DAYS,
        "script": script,
        "model": MODEL,
        "rules": NAIVE_RULES,
        "stock_rules": STOCK_RULES,
        "protocols": PROTOCOL_WORDS,
        "no_interval": NO_INTERVAL,
    }
    return templates


@cache
def _pages() -> jinja2.Environment:
    return environment()


@cache
def _macros(template: str) -> Any:
    return environment(autoescape=False).get_template(template).module


def page(template: str, /, *functions: Callable[..., Any], **values: Any) -> str:
    """Return the page that a template makes of values and functions: one file, all escaped."""
    named = {function.__name__: function for function in functions}
    return _pages().get_template(template).render(named, **values)


def said(sentence: str, /, *values: Any, **named_values: Any) -> str:
    """Return the sentence that a macro of `sentences.html` makes of these values, as plain text."""
    text = getattr(_macros("sentences.html"), sentence)(*values, **named_values)
    return re.sub(r"[ \n]+", " ", text).strip()


def markdown(macro: str, /, *values: Any) -> str:
    """Return the text that a macro of `markdown.html` makes of these values."""
    text: str = getattr(_macros("markdown.html"), macro)(*values)
    return text.strip()
