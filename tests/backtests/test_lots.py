"""Orders in whole lots: never more than is held, nor for more than the capital,
whatever is drawn.
"""

import numpy as np
import pytest

from dtml.backtest.lots import trades, whole_lots

NAMES = ("held", "weights", "price")


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Some stocks, held and wanted, of a capital between a fraction of a share and many lots."""
    random = np.random.default_rng(seed)
    stocks = int(random.integers(1, 23))
    lot = int(random.choice([1, 10, 100]))
    capital = float(10 ** random.uniform(0, 7))
    price = 10 ** random.uniform(-1, 4, stocks)
    weights = random.random(stocks) * (random.random(stocks) < 0.6)
    share = random.dirichlet(np.ones(stocks)) * random.random()
    held = share * capital / price
    held = held if seed % 3 else whole_lots(held, lot)
    return {
        "held": held,
        "weights": weights / max(weights.sum(), 1e-9),
        "price": price,
        "capital": capital,
        "lot": lot,
        "kept": (weights > 0) & (random.random(stocks) < 0.4),
        "rates": tuple(random.uniform(0, 0.01, 2)),
    }


@pytest.mark.parametrize("seed", range(200))
def test_the_laws_of_orders(seed: int) -> None:
    case = drawn(seed)
    held, weights, price = (case[name] for name in NAMES)
    change = trades(**case)
    wanted, one = weights * case["capital"] / price, case["lot"]
    bought, sold = np.maximum(change, 0.0), np.maximum(-change, 0.0)
    assert (sold <= held).all()
    assert (change[case["kept"]] == 0).all()
    assert (sold[weights == 0] == held[weights == 0]).all()
    trimmed = (sold > 0) & (weights > 0)
    assert (held - sold >= wanted - 1e-6 * one)[trimmed].all()
    assert (held - sold < wanted + one)[(weights > 0) & ~case["kept"] & (held > wanted)].all()
    assert (held + bought <= wanted + 1e-6 * one)[bought > 0].all()
    whole = np.where(weights > 0, change, 0.0) / one
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-9)
    purchase, sale = case["rates"]
    cash = (
        case["capital"] - (held + change) @ price - bought @ price * purchase - sold @ price * sale
    )
    assert cash >= -1e-6 * case["capital"]


def test_a_capital_that_suffices_buys_every_whole_lot_of_the_weights() -> None:
    made = trades(
        np.zeros(3),
        np.array([0.1, 0.3, 0.5]),
        np.array([10.0, 7.0, 0.1]),
        capital=1000.0,
        lot=10,
        kept=np.zeros(3, dtype=bool),
        rates=(0.001, 0.002),
    )
    assert made.tolist() == [10, 40, 5000]
