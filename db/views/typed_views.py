"""The documented views as SQLAlchemy knows tables: each column with the type that both engines give back alike."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa

from db.tables.columns import REAL, UtcTimestamp
from db.views.views import VIEW_COLUMNS

_NAMES: Final[Mapping[sa.types.TypeEngine[Any], tuple[str, ...]]] = MappingProxyType(
    {
        sa.Date(): (
            *("as_of", "target", "session", "first", "last", "train_first", "train_last"),
            *("test_first", "test_last"),
        ),
        UtcTimestamp(): (
            *("known_at", "known_at_before", "made_at", "started_at", "finished_at", "created_at", "scored_at"),
            *("data_watermark", "first_known_at", "raised_at", "sent_at", "test_read_at", "queued_at", "at"),
        ),
        sa.JSON(): ("gaps", "seeds", "config", "restated", "failures", "settings", "search"),
        sa.Integer(): (
            *("fetched", "stored", "refused", "predictions", "asked", "n", "rises", "label", "hit"),
            *("running_nights", "running_n", "covered", "called", "right_calls", "unanimous"),
            *("told_apart", "stocks", "days", "members", "shuffles", "epochs", "top"),
            *("configurations", "configuration", "is_rule", "is_best_rule", "kept", "retrain_every", "tried"),
            *(
                "id",
                "priority",
                "attempts",
                "parameters",
                "vocabulary",
                "pairs",
                "steps",
                "sentences",
                "step",
                "tokens",
            ),
        ),
        sa.String(): (
            *("market", "symbol", "name", "sector", "source", "kind", "run_id", "receipt", "call"),
            *("always_up", "index_reversal", "index_below_mean20", "predictor", "protocol"),
            *("status", "reason", "value", "inputs_hash", "model", "code_version", "checkpoint_hash"),
            *("benchmark_id", "backtest_id", "portfolio", "best_rule", "message"),
            *("source_language", "target_language", "text", "translation", "size", "test", "test_hash", "signature"),
            "against",
        ),
    }
)
_TYPES: Final = {name: kind for kind, names in _NAMES.items() for name in names}  # every other column is a number
_COUNTS: Final = frozenset({("run_score", "seeds"), ("benchmark_configuration", "seeds")})  # elsewhere a list


def view(name: str) -> sa.TableClause:
    """A documented view, to select from."""
    return sa.table(name, *(sa.column(each, _type(name, each)) for each in VIEW_COLUMNS[name]))


def _type(name: str, column: str) -> sa.types.TypeEngine[Any]:
    return sa.Integer() if (name, column) in _COUNTS else _TYPES.get(column, REAL)
