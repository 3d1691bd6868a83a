"""Which tests compute: the laws of numbers that cost little, need no server and run no night.

`python -m tests.processors` runs them once for each kind of processor, and `make soak` calls it. A
pass takes about a minute of a processor. The files are named, not marked: what a file tests is one
thing.
"""

NUMERICAL = (
    "tests/models/test_baselines.py",
    "tests/models/test_calibration.py",
    "tests/models/test_calibration_exact.py",
    "tests/models/test_features.py",
    "tests/models/test_metrics.py",
    "tests/models/test_model.py",
    "tests/models/test_recurrence.py",
    "tests/models/test_scoreboard.py",
    "tests/models/test_stacked.py",
    "tests/models/test_stocknet.py",
    "tests/models/test_training.py",
    "tests/models/test_training_steps.py",
    "tests/models/test_windows.py",
    "tests/translating/test_beam_search.py",
    "tests/translating/test_dropout.py",
    "tests/translating/test_ensemble.py",
    "tests/translating/test_network.py",
    "tests/translating/test_seq2seq.py",
    "tests/translating/test_translate.py",
    "tests/translating/test_translator_training.py",
    "tests/ranking/test_rank_metrics.py",
    "tests/ranking/test_ranking.py",
    "tests/backtests/test_folds.py",
    "tests/backtests/test_performance.py",
    "tests/backtests/test_portfolio.py",
)

# These take seconds, so that they are marked slow, and are those in which a processor has shown.
ALSO = (
    "tests/models/test_training_steps.py::test_the_parts_of_a_step_add_up_to_the_whole[correlation]",
    "tests/models/test_training_steps.py::test_the_parts_of_a_step_add_up_to_the_whole[dtml]",
)

# Where how many threads add up could decide; the rest is done by one thread or by numpy.
THREADED = (
    "tests/models/test_model.py",
    "tests/models/test_recurrence.py",
    "tests/models/test_training_steps.py",
    "tests/translating/test_network.py",
)
