"""The colours of lines: CSS variables of the page, which differ in light and dark mode."""

from zlib import crc32

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES

PALETTE = 10  # colours of lines
MODELS = ("lstm", "alstm", "adv_alstm", "stocknet", "logistic_regression", "gradient_boosting")
# Positions in the palette.
PLACES = {
    **{name: number for number, name in enumerate((MODEL, *NAIVE_RULES, *MODELS))},
    "long": 0,
    "long-short": 4,
    "weighted": 5,
    "probability": 0,
    "calibrated": 9,
    "account": 0,
    "account, no costs": 1,
}
COLOURS = {
    **{name: f"var(--s{number})" for name, number in PLACES.items()},
    "rise": "var(--rise)",
    "fall": "var(--fall)",
    "index": "var(--ink)",
    "close": "var(--ink)",
    "equal weight": "var(--faint)",
    "equal parts": "var(--faint)",
    "adjusted close": "var(--faint)",
}


def colour(name: str) -> str:
    """Return the colour of a model, a rule or a form of portfolio: the same one on every page."""
    form = name.partition(",")[0]
    if form in COLOURS:
        return COLOURS[form]
    number = crc32(form.encode()) % PALETTE
    return f"var(--s{number})"
