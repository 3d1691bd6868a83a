"""The days that networks are trained or validated on, on one device, and their batches."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtml.markets.definition import LabelProtocol
from dtml.network import Batch
from dtml.windows import Windows

Stocks = Int[Tensor, " some"]  # positions of the stocks of a step


@dataclass(frozen=True)
class Span:
    """The days of a training or validation span on one device.

    `days`, on CPU, are the positions of days on which a stock counts; the window of day d begins
    with row d. `movement` is 0 where unknown.
    """

    rows: Float[Tensor, "sessions symbols features"]
    observed: Bool[Tensor, "all_days stocks"]
    rises: Bool[Tensor, "all_days stocks"]
    counted: Bool[Tensor, "all_days stocks"]
    movement: Float[Tensor, "all_days stocks"]
    days: Int[Tensor, " days"]
    window: int

    @classmethod
    def of(cls, windows: Windows, protocol: LabelProtocol, device: torch.device) -> "Span":
        """Return the span of these windows on a device; `protocol` says which stock-days count."""
        labelled = windows.labelled(protocol)
        return cls(
            rows=windows.rows.to(device),
            observed=windows.observed.to(device),
            rises=windows.rises().to(device),
            counted=labelled.to(device),
            movement=windows.movement.nan_to_num().to(device),
            days=labelled.any(dim=1).nonzero().squeeze(1),
            window=windows.window,
        )

    def batch(
        self, days: Int[Tensor, " days"], step: int = 0, stocks: Stocks | None = None
    ) -> Batch:
        """Return the batch of these days after `step` steps, of all stocks or at positions."""
        sessions_of_windows = days.unsqueeze(1) + torch.arange(self.window)  # [days window]
        sessions, positions = sessions_of_windows.unique(return_inverse=True)
        device = self.rows.device
        days_on_device = days.to(device)
        rows = self.rows[sessions.to(device)]
        if stocks is not None:
            index = rows[:, -1:]  # stays the last symbol
            rows = torch.cat([rows[:, stocks], index], dim=1)

        def of_batch(by_day: Tensor) -> Tensor:
            of_days = by_day[days_on_device]
            return of_days if stocks is None else of_days[:, stocks]

        return Batch(
            rows=rows,
            windows=positions.to(device),
            observed=of_batch(self.observed),
            rises=of_batch(self.rises),
            counted=of_batch(self.counted),
            step=torch.tensor(step, dtype=torch.float32, device=device),
            movement=of_batch(self.movement),
        )

    def stacked(self, days: Int[Tensor, "*members days"], step: Float[Tensor, ""]) -> Batch:
        """Return the batch of these days, on the device, of all members that train as one network.

        Its shape depends on the number of days alone: its rows are the sessions of each day's
        window, the oldest of all days first.
        """
        places = torch.arange(self.window, device=days.device)
        sessions = days.unsqueeze(-2) + places.unsqueeze(-1)  # [*members window days]
        window, count = sessions.shape[-2:]
        rows_of_days = torch.arange(window * count, device=days.device).view(window, count)
        return Batch(
            rows=self.rows[sessions].flatten(-4, -3),
            windows=rows_of_days.mT,
            observed=self.observed[days],
            rises=self.rises[days],
            counted=self.counted[days],
            step=step,
            movement=self.movement[days],
        )
