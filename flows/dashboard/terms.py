"""The words of the pages and what they mean, to which a "?" beside a word links."""

from collections.abc import Mapping
from typing import NamedTuple

from dtml.baselines.naive_rules import NAIVE_RULES
from dtml.evaluation.metrics import MINIMUM_DAYS


class Term(NamedTuple):
    """Hold a word of the pages, and its meaning in plain text."""

    word: str
    meaning: str


_RULES = "; ".join(f"{name}: {words}" for name, words in NAIVE_RULES.items())
TERMS: Mapping[str, Term] = {
    "night": Term(
        word="night, target session",
        meaning="A night runs after a session has closed. It uses data up to that session and "
        "predicts the next one, which is its target session.",
    ),
    "ranking": Term(
        word="ranking, place",
        meaning="The stocks of a market in the order in which they are expected to do in the "
        "target session, the best first. A stock's place is its number in that order; the best "
        "has place 1. The ranking says which stocks do better than others, not which of them "
        "rise. An arrow gives the number of places gained or lost since the night before.",
    ),
    "score": Term(
        word="score",
        meaning="The number by which a ranker orders the stocks. Its scale has no meaning, so it "
        "is only drawn: the bar reaches from the middle of the night's scores to the right for "
        "the better half, and to the left for the worse half.",
    ),
    "above-median": Term(
        word="above the median",
        meaning="The probability that a stock's return is above the median of all stocks in the "
        "target session, which one half of them reach. Rankers that are networks give no such "
        "probability.",
    ),
    "direction": Term(
        word="direction",
        meaning="Whether a stock is predicted to rise or to fall in the target session, by its "
        "calibrated probability of a rise. If that is inside the abstention band, the stock has no "
        "direction. A direction comes from the model DTML; the ranking may come from another "
        "model, and the two may disagree. The ranking is the answer of the pages.",
    ),
    "band": Term(
        word="abstention band, level, coverage",
        meaning="A range of probabilities around one half in which the model gives no direction. "
        "It is chosen on validation days so that at least a share of the stock-days, the level, "
        "has the correct direction or none. Coverage is that share as it came. Only directions at "
        "the market's level count as answers; with no band, every stock has a direction.",
    ),
    "calibrated": Term(
        word="calibrated probability",
        meaning="The probability of a rise after a correction on validation days, so that of the "
        "stocks with a probability of 55 % about 55 % rise. The one before is called raw.",
    ),
    "seeds": Term(
        word="seeds for a rise, spread",
        meaning="A model is an ensemble of networks that differ in the seed of their random "
        "numbers. Seeds for a rise is the share of them with a raw probability above one half, and "
        "the spread is the standard deviation of their probabilities.",
    ),
    "rank-ic": Term(
        word="rank IC",
        meaning="The rank correlation, within a day, between the ranking of the stocks and their "
        "returns. The figure is the mean over nights, and 0 means no skill. The small chart adds "
        "up the rank IC of each night: a line that climbs steadily is steady skill.",
    ),
    "after-rules": Term(
        word="after all rules",
        meaning="The rank IC of what is left of a ranking once the mix of one-line rules that "
        "explains most of it, day by day, is taken away: what it adds to all of them. 0 means "
        "that it adds nothing.",
    ),
    "interval": Term(
        word="interval in brackets",
        meaning="A 95 % interval from resampled whole days, because the stocks of one day move "
        f"together. Below {MINIMUM_DAYS} nights there is none.",
    ),
    "skill": Term(
        word="skill",
        meaning='"Proven" means that the interval of the rank IC is above 0, "negative" that it '
        'is below 0, and "not proven" that it includes 0. The best one-line rule so far is chosen '
        "in hindsight, which favours it.",
    ),
    "costs": Term(
        word="after costs",
        meaning="What following the ranking earned after the market's costs, minus what equal "
        "parts of all its stocks (or the index) earned on the same days. It comes from the paper "
        f"account once that has {MINIMUM_DAYS} sessions, as a return a year; before, from the "
        "newest dtml ranking, else from the newest backtest, both as a Sharpe ratio. "
        '"Ahead" and "behind" mean that the interval excludes 0. Skill that does not survive costs '
        "is usual: daily trades often cost more than a small rank IC brings.",
    ),
    "account": Term(
        word="paper account",
        meaning="An account without real money that follows each night's ranking: it trades at the "
        "next open, pays the market's costs, and began with 1.",
    ),
    "equal-parts": Term(
        word="equal parts",
        meaning="A portfolio of all stocks of the market with equal weights, without costs. Who "
        "follows a ranking should earn more than that.",
    ),
    "orders": Term(
        word="orders",
        meaning="What the paper account is to hold from the next open, and what it buys and sells "
        "for that. dtml orders prints the orders for your own capital and holdings. No order is "
        "sent.",
    ),
    "champion": Term(
        word="champion, promotion",
        meaning="Where several rankers compete, the champion is the one whose ranking is shown. "
        "Another one is promoted in its place once the evidence that it ranks better suffices.",
    ),
    "drift": Term(
        word="drift",
        meaning="Inputs, skill or coverage that differ from those of the model's training by more "
        "than chance explains.",
    ),
    "late": Term(
        word="late, refused, interrupted",
        meaning="A night is late if it is not complete two hours after it was due. It is refused, "
        "and predicts nothing, if the bars of too many stocks are missing. It is interrupted if "
        "its process died; the next run goes on from what is stored.",
    ),
    "acc-mcc": Term(
        word="ACC, MCC",
        meaning="Share of correct directions; Matthews correlation coefficient, which is 0 for "
        "directions without skill. Here a stock is predicted to rise if its raw probability is "
        "above one half, else to fall, so that every stock-day counts. A single night says "
        "little: look at the interval.",
    ),
    "rules": Term(
        word="naive rules, best naive rule",
        meaning=f"{_RULES}. The best one is that with the highest figure so far, which is chosen "
        'in hindsight and so favoured. "Beats" and "is beaten by" mean that the interval of the '
        'difference on the same days excludes 0, widened for the number of rules; "beats" alone '
        "means that this holds for every rule. An interval that includes 0 does not show that the "
        "two are equal.",
    ),
}
