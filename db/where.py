"""Conditions of `db.read` beyond equality: `read(conn, "night_log", as_of=where.before(day))`."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

Column = sa.ColumnElement[Any]
Condition = Callable[[Column], sa.ColumnElement[bool]]


def since(value: object) -> Condition:
    """Select values from this one on."""
    return lambda column: column >= value


def after(value: object) -> Condition:
    """Select values above this one."""
    return lambda column: column > value


def until(value: object) -> Condition:
    """Select values up to this one."""
    return lambda column: column <= value


def before(value: object) -> Condition:
    """Select values below this one."""
    return lambda column: column < value


def between(first: object | None, last: object | None) -> Condition:
    """Select values of first..last, both included; None leaves that side open."""

    def condition(column: Column) -> sa.ColumnElement[bool]:
        bounds: list[sa.ColumnElement[bool]] = [sa.true()]
        if first is not None:
            bounds.append(column >= first)
        if last is not None:
            bounds.append(column <= last)
        return sa.and_(*bounds)

    return condition


def given(value: object | None) -> Condition:
    """Select this value or, where it is None, any."""
    return lambda column: sa.true() if value is None else column == value


def stored(column: Column) -> sa.ColumnElement[bool]:
    """Select what is not missing."""
    return column.is_not(None)


def other_than(value: object) -> Condition:
    """Select other values than this one."""
    return lambda column: column != value
