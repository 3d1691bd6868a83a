"""The ranking of a day's stocks in words and cells, for pages and the console."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dtml.markets.definition import Leg
from dtml.pages.figures import counted, figure, named, quoted, records, with_interval

SHOWN = 10  # stocks of each end
LEG_WORDS: Mapping[Leg, str] = {
    "next_close": "from this close to the next",
    "overnight": "from this close to the next open",
    "intraday": "from the next open to its close",
    "open_to_open": "from the next open to the one after",
    "second_close": "from the next close to the one after",
    "five_days": "from the next open to the open five sessions on",
    "ten_days": "from the next open to the open ten sessions on",
    "twenty_days": "from the next open to the open twenty sessions on",
}


def ranking_words(
    ranking: pd.DataFrame, scores: pd.DataFrame, champion: Mapping[str, Any] | None = None
) -> str:
    """Say which ranker ranked a night's stocks, and how good its rankings have been.

    Its rankings are compared with those of the rule that has been the best so far. `ranking` has
    `predictor, leg` and at least one row. `scores` has the columns of table `rank_score`, for each
    predictor those over all nights on which it was scored so far, which may be other nights for
    each; only those of the ranking's leg count. `champion` is the
    row of table `champion` that holds on this night, if there is one; if it is of this ranker, its
    promotion is told too.
    """
    name = ranking["predictor"].iloc[0]
    leg = ranking["leg"].iloc[0]
    leg_words = LEG_WORDS[leg]
    words = (
        f"{len(ranking)} stocks are ranked by {named(name)} for the return {leg_words}, best first"
    )
    if champion and champion["predictor"] == name:
        words = f"{words}. {promotion_words(champion)}"
    # After a change of the market's leg, the newest scores may still be those of the old one.
    of_leg = scores[scores["leg"] == leg]
    ranker_scores = of_leg[of_leg["predictor"] == name]
    if of_leg.empty:
        return f"{words}. No ranking has an outcome yet."
    if ranker_scores.empty or not ranker_scores["days"].iloc[0]:
        return f"{words}. No ranking by {named(name)} was scored on the last scored night."
    score = records(ranker_scores)[0]
    rules = of_leg[of_leg["is_rule"].astype(bool)].sort_values("rank_ic", ascending=False)
    rule = records(rules)[0]  # there is one, as every night that is scored scores the rules too
    # A ranker that is new has fewer nights than the rules.
    rule_nights = "" if rule["days"] == score["days"] else f" over {counted(rule['days'], 'night')}"
    return (
        f"{words}. Over {counted(score['days'], 'night')}, "
        f"its rank IC is {with_interval(score, 'rank_ic')}; "
        f"that of the best rule, {quoted(rule['predictor'])}, is {with_interval(rule, 'rank_ic')}"
        f"{rule_nights}. "
        "0 means no skill."
    )


def promotion_words(champion: Mapping[str, Any]) -> str:
    """Say which ranker has been champion since when, and on what evidence: a row of `champion`."""
    champion_since = f"{named(champion['predictor'])} has been champion since {champion['since']}"
    if not champion["replaced"]:
        return f"{champion_since}, the best of a walk of {champion['nights']} sessions"
    replaced = named(champion["replaced"])
    return (
        f"{champion_since} instead of {replaced}: over {champion['nights']} nights it "
        f"gained {figure(champion['gain'], signed=True)} in rank IC, and its bets reached a wealth "
        f"of {champion['stake']:.0f}, where {champion['needed']:.0f} was needed"
    )


def ranking_part(
    ranking: pd.DataFrame, scores: pd.DataFrame, champion: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a page's values of a night's ranking; they are empty where no stock was ranked."""
    return {
        "ranking": ends(ranking),
        "ranking_words": ranking_words(ranking, scores, champion) if len(ranking) else None,
    }


def ends(ranking: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the best and the worst stocks of a night, or all of a short list."""
    if len(ranking) <= 2 * SHOWN:
        return records(ranking)
    return records(pd.concat([ranking.head(SHOWN), ranking.tail(SHOWN)]))
