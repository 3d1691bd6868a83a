"""Run a trained ensemble: the probability that each stock rises, and each stock's attention."""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dtml.checkpoints import Ensemble
from dtml.network import days_at_once, gpu_errors_reported
from dtml.windows import Windows


def predict(ensemble: Ensemble, windows: Windows, device: torch.device) -> pd.DataFrame:
    """Return the probability that each observed stock rises on each day, one row a stock-day, by
    day.

    Columns: `as_of, target, symbol`, and over the seeds `probability` (mean, in [0, 1]),
    `probability_std` (0 for one), `lowest, highest`, `rising_share`. Raises DtmlError where weights
    do not fit the model, and where a GPU's memory is too small.
    """
    members = member_probabilities(ensemble, windows, device)
    mean = members.mean(dim=0)
    if members.numel():
        deviation = members.std(dim=0, correction=0)
    else:  # windows without a day: torch warns of a deviation without numbers
        deviation = members.new_empty(members.shape[1:])
    # The positions of the day and of the stock of each row.
    day_places, stock_places = windows.observed.nonzero(as_tuple=True)
    by_seed = members[:, day_places, stock_places].double().numpy()  # [seeds rows]
    return pd.DataFrame(
        {
            "as_of": windows.as_of[day_places.numpy()],
            "target": windows.target[day_places.numpy()],
            "symbol": pd.Index(windows.symbols)[stock_places.numpy()],
            "probability": mean[day_places, stock_places].double().numpy(),
            "probability_std": deviation[day_places, stock_places].double().numpy(),
            "lowest": by_seed.min(axis=0),
            "highest": by_seed.max(axis=0),
            "rising_share": (by_seed > 0.5).mean(axis=0),
        }
    )


@torch.no_grad()
def member_probabilities(
    ensemble: Ensemble, windows: Windows, device: torch.device
) -> Float[Tensor, "members days stocks"]:
    """Return the probability of a rise from each member; NaN for stocks that are not observed.

    On CPU by one thread: the last bits of a matrix product depend on their number.
    """
    probabilities = torch.full((len(ensemble.seeds), *windows.observed.shape), torch.nan)
    # A network needs at least one observed stock on every day that it is given.
    days = windows.observed.any(dim=1).nonzero().squeeze(1)
    if not len(days):
        return probabilities
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with gpu_errors_reported():
            for position in range(len(ensemble.seeds)):
                network = ensemble.network(position).to(device)
                for batch in days.split(days_at_once(len(windows.symbols), device)):
                    logits = network.logits(*_inputs(windows, batch, device))
                    probabilities[position, batch] = logits.sigmoid().cpu()
    finally:
        torch.set_num_threads(threads)
    # A network also returns logits, without a meaning, for stocks that are not observed.
    return probabilities.masked_fill(~windows.observed, torch.nan)


@torch.no_grad()
def attention(
    ensemble: Ensemble, windows: Windows, device: torch.device
) -> Float[Tensor, "days stocks stocks"]:
    """Return how much stock u (row) looked at stock v (column) on each day, mean over members and
    heads.

    Rows of observed stocks, of which each day needs one, sum to 1; others mean nothing. For a DTML
    with its data axis. Raises DtmlError as `predict`.
    """
    days = torch.arange(len(windows)).split(days_at_once(len(windows.symbols), device))
    total = torch.zeros(())
    with gpu_errors_reported():
        for position in range(len(ensemble.seeds)):
            network = ensemble.network(position).to(device)
            by_batch = []
            for batch in days:
                _, weights = network(*_inputs(windows, batch, device), need_attention=True)
                by_batch.append(weights.mean(dim=1).cpu())  # the mean over heads
            total = total + torch.cat(by_batch)
    return total / len(ensemble.seeds)


def _inputs(windows: Windows, days: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, the positions of windows in them and the observed stocks of ascending days.

    The rows are a copy: the last bits of a product depend on where in memory its factors begin.
    """
    first = int(days[0])
    stop = int(days[-1]) + 1
    span = windows.days(slice(first, stop))
    positions = (days - days[0]).unsqueeze(1) + torch.arange(windows.window)
    return span.rows.clone().to(device), positions.to(device), windows.observed[days].to(device)
