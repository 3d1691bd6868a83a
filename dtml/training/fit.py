"""Fit networks side by side; an interrupted fit resumes where it stopped.

A member is one seed of one configuration: its initial weights, the order of its batches and its
random numbers come from generators of its own, so its weights are the same whoever trains beside
it. Each is trained on a thread.

The sessions of a span lie on the device once; the windows of a day are positions in them. A step
goes through the
network a few days at a time and adds up their gradients: the loss separates by day, what a few days
need stays in a core's cache, and memory does not grow with the batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtml.checkpoints import Weights
from dtml.errors import DtmlError
from dtml.layers.network import Batch, cross_entropy, days_at_once, within_memory
from dtml.markets.definition import LabelProtocol
from dtml.training.recipe import Epoch, Member
from dtml.training.state import Fit, StateFolder, start
from dtml.windows import Windows

Stocks = Int[Tensor, " some"]
EpochReport = Callable[[Member, Epoch], None]
no_report: EpochReport = lambda *_: None  # noqa: E731 - the default of several functions


@dataclass(frozen=True)
class Span:
    """The days of a training or validation span on one device; `days`, on CPU,
    are those on which a stock counts.
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
        """Return the span of these windows; `protocol` says which stock-days count."""
        labelled = windows.labelled(protocol)
        parts = (
            windows.rows(),
            windows.observed,
            windows.rises(),
            labelled,
            windows.movement.nan_to_num(),
        )
        rows, observed, rises, counted, movement = (each.to(device) for each in parts)
        days = labelled.any(dim=1).nonzero().squeeze(1)
        return cls(rows, observed, rises, counted, movement, days, windows.window)

    def batch(
        self, days: Int[Tensor, " days"], step: int = 0, stocks: Stocks | None = None
    ) -> Batch:
        """Return the batch of these days: the distinct sessions in their windows, and each window
        as positions.

        It has all stocks, or some of them by their positions.
        """
        held = days.unsqueeze(1) + torch.arange(self.window)
        sessions, positions = held.unique(return_inverse=True)
        device = self.rows.device
        there, rows = days.to(device), self.rows[sessions.to(device)]
        known = [each[there] for each in (self.observed, self.rises, self.counted, self.movement)]
        if stocks is not None:
            rows = torch.cat([rows[:, stocks], rows[:, -1:]], dim=1)
            known = [each[:, stocks] for each in known]
        observed, rises, counted, movement = known
        taken = torch.tensor(step, dtype=torch.float32, device=device)
        return Batch(rows, positions.to(device), observed, rises, counted, taken, movement)


def fit_members(
    train: Windows,
    validation: Windows,
    members: Sequence[Member],
    *,
    device: torch.device,
    state_folder: StateFolder | None = None,
    on_epoch: EpochReport = no_report,
    begin: Sequence[Weights] | None = None,
) -> list[Fit]:
    """Train all members and return them in their order, each with its best epoch on validation.

    With a `state_folder`, the state is kept there after each epoch, and a fit that finds one
    resumes from it. `on_epoch` is called from the member's thread, for a fit that resumes first
    with the last epoch that was done. `begin` holds the first weights of each member; without it
    they are drawn. Raises DtmlError for a span without a label.
    """
    protocols = sorted({member.training.protocol for member in members})
    for protocol in protocols:
        _require_labels("training", train, protocol)
        _require_labels("validation", validation, protocol)
    places = devices_of(device)
    fits = [
        start(member, len(train.symbols), places[at % len(places)])
        for at, member in enumerate(members)
    ]
    for fit, weights in zip(fits, begin or (), strict=begin is not None):
        fit.network.load_state_dict(weights)
    queues = []
    for at, place in enumerate(places[: len(fits)]):
        spans = {
            each: (Span.of(train, each, place), Span.of(validation, each, place))
            for each in protocols
        }
        here = fits[at :: len(places)]
        queues.append(
            deque(
                _fit(fit, *spans[fit.member.training.protocol], state_folder, on_epoch)
                for fit in here
            )
        )
    _advance(queues, device)
    return fits


def devices_of(device: torch.device) -> list[torch.device]:
    """Return the devices that members are spread over: every GPU, if none is
    named by its number.
    """
    if device.type != "cuda" or device.index is not None:
        return [device]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def _require_labels(span: str, windows: Windows, protocol: LabelProtocol) -> None:
    """Raise DtmlError, with the likely reason, when no stock-day of a span
    counts, or none of them moved.
    """
    if (windows.labelled(protocol) & (windows.movement != 0)).any():
        return
    known = (windows.observed & windows.movement.isfinite()).any()
    none = "no return is known: are there bars of every session, as daily prices have?"
    small = (
        "no known return is large enough for one: do the prices change, those from which "
        "returns are computed too?"
    )
    first, last = windows.target[0].date(), windows.target[-1].date()
    raise DtmlError(f"no day of {span} has a label, {first} to {last}: {small if known else none}")


def _advance(queues: "list[deque[Iterator[int]]]", device: torch.device) -> None:
    """Run all fits to their end: on CPU by turns, on as many threads as there
    are cores; on a GPU one by one.
    """
    interrupted = Event()
    on_cpu = device.type == "cpu"

    def work(fits: "deque[Iterator[int]]") -> None:
        """Take a fit, give it an epoch, put it back: by turns, so that no
        thread is idle before the last epoch.
        """
        while fits and not interrupted.is_set():
            try:
                fit = fits.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                goes_on = next(fit, None) is not None
            except BaseException:
                # here, as nobody may be waiting for this thread before the others have ended
                interrupted.set()
                raise
            if goes_on:
                (fits.append if on_cpu else fits.appendleft)(fit)

    threads = torch.get_num_threads()
    taken = [
        fits for fits in queues for _ in range(min(len(fits), threads) if on_cpu else 1)
    ]  # each by a thread
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(
            len(taken), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                for future in [pool.submit(work, fits) for fits in taken]:
                    future.result()
            except BaseException:
                interrupted.set()  # the others stop after their epoch, which is saved
                raise
    finally:
        torch.set_num_threads(threads)


def stack_members(fits: Sequence[Fit]) -> Weights:
    """Return the kept weights of all members, each parameter with a leading axis of members."""
    return {name: torch.stack([fit.best[name] for fit in fits]) for name in fits[0].best}


def _fit(
    fit: Fit, train: Span, validation: Span, state_folder: StateFolder | None, on_epoch: EpochReport
) -> Iterator[int]:
    """Train a member and yield after each epoch."""
    if state_folder is not None and state_folder.restore(fit):
        on_epoch(fit.member, fit.epochs[-1])
    while not fit.finished:
        fit.end_epoch(_epoch(fit, train), *_validate(fit, validation))
        if state_folder is not None:
            state_folder.save(fit)
        on_epoch(fit.member, fit.epochs[-1])
        yield len(fit.epochs)


def _epoch(fit: Fit, train: Span) -> float:
    """Pass once over the training days in the member's own order; return the
    mean of the objective over batches.
    """
    fit.network.train()
    order = train.days[torch.randperm(len(train.days), generator=fit.order)]
    batches = order.split(fit.member.training.batch_days)
    return float(sum(_step(fit, train, days) for days in batches)) / len(batches)


def _step(fit: Fit, train: Span, days: Int[Tensor, " days"]) -> Tensor:
    """Take one step of the optimiser and return the objective: each part of the days weighs what it
    counts.

    Where the stocks drawn count on none of the days there is nothing to learn: no step is taken.
    """
    stocks, counts = None, train.counted[days.to(train.counted.device)]
    if fit.member.training.stocks_a_step is not None:
        drawn = torch.randperm(counts.shape[1], generator=fit.order)[
            : fit.member.training.stocks_a_step
        ]
        stocks = drawn.sort().values.to(counts.device)
        counts = counts[:, stocks]
        days = days[counts.any(dim=1).cpu()]  # of the others nothing is drawn that counts
        if len(days) == 0:
            return fit.penalty.new_zeros(())
    counted, drawn = counts.sum(), fit.random.get_state()

    def add_up(at_once: int) -> Tensor:
        total = torch.zeros_like(fit.penalty)
        for part in days.split(at_once):
            batch = train.batch(part, fit.steps, stocks)
            share = fit.network.objective(batch, fit.penalty) * (batch.counted.sum() / counted)
            share.backward()
            total += share.detach()
        return total

    def again() -> None:
        fit.optimiser.zero_grad()
        fit.random.set_state(drawn)

    total, fit.days_at_once = within_memory(add_up, fit.days_at_once, len(days), again=again)
    fit.step()
    return total


@torch.no_grad()
def _validate(fit: Fit, span: Span) -> tuple[float, float]:
    """Return the cross-entropy on a span, and the mean of what the network calls correct."""
    fit.network.eval()

    def add_up(at_once: int) -> tuple[float, float]:
        loss, correct, counted = (torch.zeros((), device=span.rows.device) for _ in range(3))
        for part in span.days.split(at_once):
            batch = span.batch(part)
            logits, size = (
                fit.network.logits(batch.rows, batch.windows, batch.observed),
                batch.counted.sum(),
            )
            loss += size * cross_entropy(logits, batch.rises, batch.counted)
            correct += (fit.network.correct(logits, batch) * batch.counted).sum()
            counted += size
        return float(loss / counted), float(correct / counted)

    at_once = days_at_once(span.observed.shape[1], span.rows.device)
    return within_memory(add_up, at_once, len(span.days))[0]
