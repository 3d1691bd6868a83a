"""The rows of the list of translation models."""

from typing import Any

from translation.cards import Card, bleu_tokenizer, receipt, recipe_of


def model_row(card: Card, scores: Any) -> dict[str, Any]:
    """Return the row of a model in the list of models, from its card and all stored scores.

    `scores` is the frame that `db.rows.translations.scores` returns.
    """
    # Scores of a comparison with another model do not count.
    scores_alone = scores[(scores["model"] == card.name) & scores["against"].isna()]
    newest = scores_alone.drop_duplicates("test", keep="last")  # the rows are in order of time
    figures = [
        f"{row.test} {row.bleu:.1f} {_tokenizer_in(row.signature)}" for row in newest.itertuples()
    ]
    return {
        "model": card.name,
        "languages": card.languages,
        "size": f"{card.size} {card.kind}",
        "pairs": card.made["pairs"],
        "validation BLEU": card.made["validation_bleu"],
        "tokenizer": bleu_tokenizer(card),
        "tests": ", ".join(figures),
        "recipe": recipe_of(card),
        "receipt": receipt(card),
    }


def _tokenizer_in(signature: str) -> str:
    """Return the part of sacreBLEU's signature that names the tokenizer, such as tok:13a."""
    parts = [part for part in signature.split("|") if part.startswith("tok:")]
    return parts[0] if parts else "tok:?"
