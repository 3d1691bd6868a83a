"""Twenty questions that a quant asks of a history of predictions, each one SQL statement over the documented views.

The same text runs on SQLite and on PostgreSQL, a reader's role suffices, and `dtml questions` asks them of a store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from db.questions import record_questions as record
from db.questions import skill_questions as skill

MARKET: Final = "'simulated'"  # as it stands in every statement, and nowhere but where the market is meant


@dataclass(frozen=True)
class Question:
    """A question in words, the statement that answers it, and a sentence on how to read the answer.

    Every order is total. What is added up is rounded, so that both engines give the same rows, but for a number that
    lies in the middle of two.
    """

    title: str
    sql: str
    note: str

    def about(self, market: str) -> str:
        """The statement for another market; its name may be any text."""
        return self.sql.replace(MARKET, literal(market)).strip()


def literal(value: str) -> str:
    """Any text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


QUESTIONS: Final = (
    Question(
        "What is called for the next session, and which calls remain at a level of 80 %?",
        skill.TOMORROW,
        "`call_at_80` is 'none' where the calibrated probability lies inside the band of no call; `looks_at` is the"
        " other stock that gets most of this one's attention.",
    ),
    Question(
        "Does the model beat the naive rules, and by how much?",
        skill.RULES_BEATEN,
        "A rule is beaten when `gain_low` is above 0. `acc_low` and `acc_high` resample days; `model_gains` is the"
        " mean over nights of the model's ACC less the rule's, between 1.96 standard errors of nights taken as"
        " independent.",
    ),
    Question(
        "Where the model contradicts a rule, who is right?",
        skill.RULES_CONTRADICTED,
        "On the contradicted calls exactly one of the two is right: a model that only repeats a rule has few of them,"
        " and one that adds to it has `model_right` above `rule_right`.",
    ),
    Question(
        "Which stocks is it best at, and which worst?",
        skill.STOCKS,
        "The first five and the last five by MCC; `gain` is ACC less that of 'every stock rises' on the same"
        " sessions. Of many stocks some are far out by luck alone.",
    ),
    Question(
        "Which nights were the worst, and what happened then?",
        skill.NIGHTS,
        "A night far below one half on which `called_rise` is near 0 or 1 was one bet on the whole market, and it was"
        " lost.",
    ),
    Question(
        "Is it better in some month, in some sector, on some weekday?",
        skill.SLICES,
        "Compare `gain`, not `acc`: in a month in which most stocks rose, calling rises was no art. Of many slices"
        " some are lucky.",
    ),
    Question(
        "Is it right more often when it is surer?",
        skill.SURENESS,
        "Distance is that of the probability from one half, from the row's own step to the next; `acc` should climb"
        " from row to row.",
    ),
    Question(
        "Is it calibrated?",
        skill.CALIBRATED,
        "`said` is the mean probability, `risen` the share that rose: a gap above 0 below one half and below 0 above"
        " it means that the model is too sure of itself.",
    ),
    Question(
        "Where do the members disagree, and are they right less often there?",
        skill.MEMBERS,
        "Calls in four equal parts by the distance between the smallest and the largest probability of a member;"
        " divided calls have members on both sides of one half.",
    ),
    Question(
        "What does abstaining buy?",
        skill.ABSTAINING,
        "At each level `covered`, the share without a wrong call, is to reach the level: below it, the days of"
        " validation were easier than those that came. `called` is the share still called, `acc` how often that was"
        " right.",
    ),
    Question(
        "What would the ten highest have earned over the ten lowest, month by month?",
        record.LONG_SHORT,
        "Percent a night, close to close, before any cost and with equal weights; with fewer than twenty stocks the"
        " two tens overlap and the difference shrinks.",
    ),
    Question(
        "How often does a call turn from one night to the next, and what is a turned call worth?",
        record.TURNS,
        "Turned calls are what a follower pays commission for; `mean_gain_percent` is the mean move in the direction"
        " of the call, before cost.",
    ),
    Question(
        "Which were the longest streaks of right and of wrong calls?",
        record.STREAKS,
        "Of a coin's calls for 30 stocks over 60 nights the longest right streak is of 8 to 13 nights, nine times in"
        " ten.",
    ),
    Question(
        "Which stocks are looked at most?",
        record.LOOKED_AT,
        "Over the last 20 nights, from the few other stocks that are kept of those each looks at: how many look at"
        " this one, how often it is their first, and its share of the weight kept.",
    ),
    Question(
        "What drives the stock that is called best?",
        record.DRIVERS,
        "A driver shows when the stock rose more often after the source's rise than after its fall, and the model"
        " uses it when its calls for a rise do the same.",
    ),
    Question(
        "How do two models compare on the same stock-days?",
        record.MODELS,
        "Only stock-days that both predicted count. The model that is right alone more often is the better one; two"
        " that call alike are one.",
    ),
    Question(
        "Does a model get worse with age?",
        record.AGE,
        "Nights are those that a model served, ten a row, whichever model it was; a falling `gain` says to train more"
        " often.",
    ),
    Question(
        "Which prices were restated, and which calls had seen the older ones?",
        record.RESTATED,
        "The stock's own calls that knew a bar as it was before: `dtml replay --known-at` makes such a night from"
        " either version. Whoever looked at the stock saw it too.",
    ),
    Question(
        "What was refused, left out, late, or never came?",
        record.MISSING,
        "The newest first. A refused bar is in no window; a night that lost too many is refused whole, and says why. A"
        " night not made before the day of its session, which begins at midnight UTC, was made up, or made for a"
        " market that opens later that day.",
    ),
    Question(
        "Which calls were surest and wrong, had they been made in time, and how are they made again?",
        record.RECEIPTS,
        "`dtml replay RECEIPT` makes the call again to the last bit. `minutes_after_prices` counts within a day;"
        " `before_its_day` is 'no' for a night that was made up later.",
    ),
)
