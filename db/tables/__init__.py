"""The tables: what each row and each column means is in the comments, which the data dictionary prints.

Dates are sessions of the market's exchange. Timestamps are UTC. Missing is NULL, never 0.
"""

from db.tables.attention import attention_weight, explanation
from db.tables.backtests import backtest, backtest_fold, backtest_portfolio, backtest_return, backtest_score
from db.tables.benchmarks import benchmark, benchmark_score, benchmark_seed
from db.tables.calibration import abstention_band, abstention_count, calibration_bin
from db.tables.columns import metadata
from db.tables.markets import instrument, membership, price, price_fetch, rejected_bar, symbol_warning
from db.tables.nights import alert, night
from db.tables.predictions import outcome, prediction, rule_direction, run, score
from db.tables.rankings import rank_score, ranker, ranking, ranking_difference, ranking_score, stock_rank
from db.tables.translations import translation_model, translation_progress, translation_score, translation_text
