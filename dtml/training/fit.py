"""Fit networks side by side; an interrupted fit resumes where it stopped.

A member is one seed of one configuration: its initial weights, the order of its batches and its
random numbers come from generators of its own, so that its weights do not depend on the members
trained beside it. Members are trained on threads.

The sessions of a span are on the device once; the windows of a day are positions in them. A step
goes through the network a few days at a time and adds up their gradients: the loss separates by
day, the data of a few days fit into a core's cache, and memory does not grow with the batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from threading import Event

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtml.checkpoints import Weights
from dtml.errors import DtmlError
from dtml.layers.network import Batch, cross_entropy, days_at_once, within_memory
from dtml.markets.definition import LabelProtocol
from dtml.training.recipe import Epoch, Member, ResumedEpoch
from dtml.training.state import Fit, StateFolder, start
from dtml.windows import Windows

Stocks = Int[Tensor, " some"]  # positions of the stocks of a step
# Python needs longer to start the kernels of a step than a GPU to compute them, so that a single
# thread would leave it idle.
THREADS_OF_A_GPU = 3
EpochReport = Callable[[Member, Epoch], None]


def no_report(_member: Member, _epoch: Epoch) -> None:
    """Report nothing of an epoch."""


@dataclass(frozen=True)
class Span:
    """The days of a training or validation span on one device.

    `days`, on CPU, are the positions of the days on which a stock counts. `movement` is 0 where it
    is not known. Day d sees the rows d .. d + window - 1.
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
        """Return the span of these windows on a device; `protocol` says which stock-days count.

        Its `days` stay on the CPU, where their order is drawn.
        """
        labelled = windows.labelled(protocol)

        def placed(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        return cls(
            rows=placed(windows.rows()),
            observed=placed(windows.observed),
            rises=placed(windows.rises()),
            counted=placed(labelled),
            movement=placed(windows.movement.nan_to_num()),
            days=labelled.any(dim=1).nonzero().squeeze(1),
            window=windows.window,
        )

    def batch(
        self, days: Int[Tensor, " days"], step: int = 0, stocks: Stocks | None = None
    ) -> Batch:
        """Return the batch of these days, of all stocks or of those at some positions.

        It holds the distinct sessions of their windows, and each window as positions in them.
        `step` is the number of steps that the training has taken.
        """
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

    On a "cuda" device without a number, the members are spread over all GPUs (`devices_of`).
    With a `state_folder`, the state is saved there after each epoch, and a fit that finds its state
    resumes from it. A state is found by the name of its member, which has neither the spans nor
    `begin`: a folder is for members of the same spans and first weights. `on_epoch` is called after
    each epoch, from the thread that ran it; for a resumed fit, the first call has the last epoch
    done before, as a `ResumedEpoch`. `begin` holds the first weights of each member; without it
    they are drawn. Raises DtmlError for a span without a label, a loss that is not finite, a saved
    state that is damaged, and a day that does not fit into the memory of a GPU.
    """
    protocols = sorted({member.training.protocol for member in members})
    for protocol in protocols:
        _require_labels("training", train, protocol)
        _require_labels("validation", validation, protocol)
    devices = devices_of(device)
    fits = [
        start(member, len(train.symbols), devices[position % len(devices)])
        for position, member in enumerate(members)
    ]
    if begin is not None:
        for fit, weights in zip(fits, begin, strict=True):
            fit.network.load_state_dict(weights)
    # A queue for each device, of the fits that were started on it above. Each fit is an iterator
    # whose next() trains one epoch.
    queues = []
    for position, fit_device in enumerate(devices[: len(fits)]):
        train_spans = {protocol: Span.of(train, protocol, fit_device) for protocol in protocols}
        validation_spans = {
            protocol: Span.of(validation, protocol, fit_device) for protocol in protocols
        }
        queue: deque[Iterator[int]] = deque()
        for fit in fits[position :: len(devices)]:
            protocol = fit.member.training.protocol
            queue.append(
                _fit(
                    fit,
                    train=train_spans[protocol],
                    validation=validation_spans[protocol],
                    state_folder=state_folder,
                    on_epoch=on_epoch,
                )
            )
        queues.append(queue)
    _advance(queues, device)
    return fits


def devices_of(device: torch.device) -> list[torch.device]:
    """Return the devices for the members: every GPU, unless one is named by its number."""
    if device.type != "cuda" or device.index is not None:
        return [device]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def _require_labels(span: str, windows: Windows, protocol: LabelProtocol) -> None:
    """Raise DtmlError, with the likely reason, unless a stock-day of a span counts and moved.

    Returns of 0 alone, which the protocol "all" counts, teach nothing. `span` is the name of the
    span in the message.
    """
    has_moved = windows.movement != 0  # true for an unknown movement, which is never labelled
    if (windows.labelled(protocol) & has_moved).any():
        return
    is_known = windows.movement.isfinite()
    if not windows.observed.any():
        reason = (
            "no stock can be used on any of its days; check that the prices have a bar for every "
            "session, and that the market's file lists constituents of that time"
        )
    elif (windows.observed & is_known).any():
        reason = (
            "no known return is large enough for a label; check that the prices change, and in "
            "particular those that `returns` in the market's file names"
        )
    else:
        reason = "no return is known; check that the prices have a bar for every session"
    first = windows.target[0].date()
    last = windows.target[-1].date()
    raise DtmlError(f"no day of the {span} span, {first} to {last}, has a label: {reason}")


def _advance(queues: "list[deque[Iterator[int]]]", device: torch.device) -> None:
    """Run all fits to their end, those of each queue on threads of its own.

    On a CPU the fits take turns, on as many threads as torch was set to. On a GPU each of
    `THREADS_OF_A_GPU` threads trains a fit to its end before it takes another. No queue has more
    threads than fits. Meanwhile torch itself is set to one thread.
    """
    interrupted = Event()
    on_cpu = device.type == "cpu"

    def work(fits: "deque[Iterator[int]]") -> None:
        """Take a fit, train one epoch and put it back, until no fit is left.

        On a CPU it is put back last: fits then take turns, and no thread is idle before the last
        epoch. On a GPU it is put back first, so that the thread goes on with it.
        """
        while fits and not interrupted.is_set():
            try:
                fit = fits.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                goes_on = next(fit, None) is not None
            except BaseException:
                # Set here, because the main thread may wait for others before it sees this error.
                interrupted.set()
                raise
            if goes_on and on_cpu:
                fits.append(fit)
            elif goes_on:
                fits.appendleft(fit)

    threads = torch.get_num_threads()
    queue_of_thread = []
    for fits in queues:
        threads_of_queue = min(len(fits), threads if on_cpu else THREADS_OF_A_GPU)
        queue_of_thread += [fits] * threads_of_queue
    try:
        # Each fit computes on one thread, so that the number of cores never changes its weights.
        torch.set_num_threads(1)
        with ThreadPoolExecutor(
            len(queue_of_thread), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                futures = [pool.submit(work, fits) for fits in queue_of_thread]
                for future in futures:
                    future.result()
            except BaseException:
                # Set here too, because a KeyboardInterrupt reaches the main thread alone. The fits
                # stop after their present epoch, which is saved.
                interrupted.set()
                raise
    finally:
        torch.set_num_threads(threads)


def stack_members(fits: Sequence[Fit]) -> Weights:
    """Return the best weights of all members, each parameter with a leading axis of members."""
    stacked: Weights = {}
    for name in fits[0].best:
        stacked[name] = torch.stack([fit.best[name] for fit in fits])
    return stacked


def _fit(
    fit: Fit, train: Span, validation: Span, state_folder: StateFolder | None, on_epoch: EpochReport
) -> Iterator[int]:
    """Train a member, and yield the number of epochs done after each.

    With a `state_folder`, it resumes from the state saved there, if any, and saves each epoch.
    """
    # A restored state has one epoch or more, the last of which is reported again.
    if state_folder is not None and state_folder.restore(fit):
        on_epoch(fit.member, ResumedEpoch(**asdict(fit.epochs[-1])))
    while not fit.finished:
        loss = _epoch(fit, train)
        validation_loss, validation_acc = _validate(fit, validation)
        fit.end_epoch(loss, validation_loss, validation_acc)
        if state_folder is not None:
            state_folder.save(fit)
        on_epoch(fit.member, fit.epochs[-1])
        yield len(fit.epochs)


def _epoch(fit: Fit, train: Span) -> float:
    """Pass once over the training days in the member's own order.

    Return the mean of the objective over batches.
    """
    fit.network.train()
    order = torch.randperm(len(train.days), generator=fit.order)
    batches = train.days[order].split(fit.member.training.batch_days)
    total = sum(_step(fit, train, days) for days in batches)
    return float(total) / len(batches)


def _step(fit: Fit, train: Span, days: Int[Tensor, " days"]) -> Tensor:
    """Take one step of the optimiser and return the objective.

    The days go through the network in parts, and each part is weighted by its share of the counted
    stock-days. If the recipe draws stocks for each step and these count on none of the days, there
    is nothing to learn: no step is taken, and the objective is 0.
    """
    stocks = None
    is_counted = train.counted[days.to(train.counted.device)]  # [days stocks]
    stocks_a_step = fit.member.training.stocks_a_step
    if stocks_a_step is not None:
        shuffled_stocks = torch.randperm(is_counted.shape[1], generator=fit.order)
        stocks = shuffled_stocks[:stocks_a_step].sort().values.to(is_counted.device)
        is_counted = is_counted[:, stocks]
        days = days[is_counted.any(dim=1).cpu()]  # the days on which a drawn stock counts
        if len(days) == 0:
            return fit.penalty.new_zeros(())
    counted = is_counted.sum()
    # `fit.order` is not drawn from below, so `undo` need not restore it.
    random_state = fit.random.get_state()

    def add_up(at_once: int) -> Tensor:
        total = torch.zeros_like(fit.penalty)
        for part in days.split(at_once):
            batch = train.batch(part, fit.steps, stocks)
            weight = batch.counted.sum() / counted
            part_of_loss = fit.network.objective(batch, fit.penalty) * weight
            part_of_loss.backward()
            total += part_of_loss.detach()
        return total

    def undo() -> None:
        """Drop the gradients of a failed attempt, and let the next one draw the same numbers."""
        fit.optimiser.zero_grad()
        fit.random.set_state(random_state)

    total, fit.days_at_once = within_memory(add_up, fit.days_at_once, len(days), undo=undo)
    fit.step()
    return total


@torch.no_grad()
def _validate(fit: Fit, span: Span) -> tuple[float, float]:
    """Return the cross-entropy on a span, and the mean of `Network.correct`.

    Both are means over the counted stock-days.
    """
    fit.network.eval()

    def add_up(at_once: int) -> tuple[float, float]:
        loss = torch.zeros((), device=span.rows.device)
        correct = torch.zeros((), device=span.rows.device)
        counted = torch.zeros((), device=span.rows.device)
        for part in span.days.split(at_once):
            batch = span.batch(part)
            logits = fit.network.logits(batch.rows, batch.windows, batch.observed)
            size = batch.counted.sum()
            loss += size * cross_entropy(logits, batch.rises, batch.counted)
            is_correct = fit.network.correct(logits, batch)
            correct += (is_correct * batch.counted).sum()
            counted += size
        return float(loss / counted), float(correct / counted)

    at_once = days_at_once(span.observed.shape[1], span.rows.device)
    means, _ = within_memory(add_up, at_once, len(span.days))
    return means
