"""Fit the members of an ensemble; an interrupted fit continues where it stopped.

A member is one seed: its initial weights, the order of its batches and its dropout come from generators of its own, so
equal seeds give equal weights whoever else trains beside it.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dtml.checkpoints import Weights, read_tensors, write_tensors
from dtml.errors import DtmlError, UsageError
from dtml.model import DTML, ModelConfig
from dtml.windows import Protocol, Windows
from translation.transformer import use_generator


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe; the defaults are the paper's."""

    protocol: Protocol = "paper"  # the stock-days that the loss and the validation count
    epochs: int = 200
    batch_days: int = 64
    learning_rate: float = 1e-3
    penalty: float = 1.0  # lambda of the selective regularisation
    first_kept_epoch: int = 10  # earlier ones are never kept
    patience: int | None = None  # epochs without a better validation accuracy before the fit stops

    def __post_init__(self) -> None:
        counts = (self.epochs, self.batch_days, self.first_kept_epoch, 1 if self.patience is None else self.patience)
        if min(counts) < 1:
            raise UsageError(f"epochs, batch_days, first_kept_epoch and patience are 1 or more; got {counts}")
        if self.learning_rate <= 0 or self.penalty < 0:
            raise UsageError(f"learning_rate is above 0, penalty 0 or more; got {self.learning_rate}, {self.penalty}")


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training days left behind; losses are without the penalty."""

    number: int
    loss: float
    validation_loss: float
    validation_acc: float


@dataclass
class Fit:
    """The state of one member in training."""

    seed: int
    model: DTML
    optimiser: torch.optim.Adam
    order: torch.Generator  # shuffles days
    dropout: torch.Generator
    best: Weights = field(default_factory=dict)
    best_epoch: int = 0
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def best_acc(self) -> float:
        """Validation accuracy of the epoch that is kept; below every real one before there is one."""
        return self.epochs[self.best_epoch - 1].validation_acc if self.best_epoch else -1.0

    def finished(self, config: TrainingConfig) -> bool:
        """Whether all epochs are done, or patience has run out."""
        done = len(self.epochs)
        stale = config.patience is not None and self.best_epoch > 0 and done - self.best_epoch >= config.patience
        return done >= config.epochs or stale


def fit_member(
    train: Windows,
    validation: Windows,
    *,
    model_config: ModelConfig,
    config: TrainingConfig,
    seed: int,
    device: torch.device,
    state_file: Path | None = None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Fit:
    """Train one member and keep its best epoch on validation.

    With a `state_file`, the state after each epoch lies there, and a fit that finds one continues from it; it ends with
    the weights that an undisturbed fit would have.
    """
    fit = _start(model_config, len(train.symbols), config, seed, device)
    if state_file is not None and state_file.exists():
        _restore(fit, state_file)
    while not fit.finished(config):
        loss = _train_epoch(fit, train, config, device)
        validation_loss, validation_acc = _validate(fit.model, validation, config, device)
        fit.epochs.append(Epoch(len(fit.epochs) + 1, loss, validation_loss, validation_acc))
        eligible = len(fit.epochs) >= min(config.first_kept_epoch, config.epochs)
        if eligible and validation_acc > fit.best_acc:
            fit.best_epoch = len(fit.epochs)
            fit.best = {name: value.detach().cpu().clone() for name, value in fit.model.state_dict().items()}
        if state_file is not None:
            _save(fit, state_file)
        on_epoch(fit.epochs[-1])
    return fit


def initialise(model: DTML, identity: float, generator: torch.Generator) -> None:
    """Draw every linear map uniform in +-1/sqrt(inputs), torch's default, from a generator of the caller's.

    The offsets of the context normalisation, one row a stock, are normal with standard deviation `identity`.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    if identity:
        nn.init.normal_(model.normalise.offset, std=identity, generator=generator)


def loss_of(
    logits: Float[Tensor, "days stocks"], rises: Bool[Tensor, "days stocks"], counted: Bool[Tensor, "days stocks"]
) -> Float[Tensor, ""]:
    """Binary cross-entropy averaged over the counted stock-days."""
    each = nn.functional.binary_cross_entropy_with_logits(logits, rises.to(logits.dtype), reduction="none")
    return (each * counted).sum() / counted.sum()


def selective_penalty(model: DTML) -> Float[Tensor, ""]:
    """Squared norm of the last layer (section 3.4 of Yoo et al.): no other layer is regularised."""
    return model.predict.weight.square().sum() + model.predict.bias.square().sum()


def _start(model_config: ModelConfig, stocks: int, config: TrainingConfig, seed: int, device: torch.device) -> Fit:
    first, order, dropout = (int(state) for state in np.random.SeedSequence(seed).generate_state(3))
    model = DTML(model_config, stocks)
    initialise(model, model_config.identity, torch.Generator().manual_seed(first))
    model.to(device)
    masks = torch.Generator(device).manual_seed(dropout)
    use_generator(model, masks)
    optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    return Fit(seed, model, optimiser, torch.Generator().manual_seed(order), masks)


def _counted_days(windows: Windows, protocol: Protocol) -> Int[Tensor, " days"]:
    """Days on which at least one stock counts."""
    return windows.labelled(protocol).any(dim=1).nonzero().squeeze(1)


def _train_epoch(fit: Fit, train: Windows, config: TrainingConfig, device: torch.device) -> float:
    days = _counted_days(train, config.protocol)
    shuffled = days[torch.randperm(len(days), generator=fit.order)]
    labelled, rises = train.labelled(config.protocol), train.rises()
    losses = []
    fit.model.train()
    for batch in shuffled.split(config.batch_days):
        loss = loss_of(_forward(fit.model, train, batch, device), rises[batch].to(device), labelled[batch].to(device))
        fit.optimiser.zero_grad(set_to_none=True)
        (loss + config.penalty * selective_penalty(fit.model)).backward()
        fit.optimiser.step()
        losses.append(loss.detach())
    mean = float(torch.stack(losses).mean())
    if not np.isfinite(mean):
        raise DtmlError(
            f"the loss of seed {fit.seed} is {mean} in epoch {len(fit.epochs) + 1}: lower the learning rate"
        )
    return mean


def _forward(
    model: DTML, windows: Windows, days: Int[Tensor, " days"], device: torch.device
) -> Float[Tensor, "days stocks"]:
    """Logits in float32; on CUDA the products are taken in bfloat16."""
    inputs = (windows.stocks[days], windows.index[days], windows.observed[days])
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        logits: Tensor = model(*(value.to(device) for value in inputs))[0]
    return logits.float()


@torch.no_grad()
def _validate(model: DTML, windows: Windows, config: TrainingConfig, device: torch.device) -> tuple[float, float]:
    """Loss and accuracy over the counted stock-days of the validation span."""
    model.eval()
    days = _counted_days(windows, config.protocol)
    logits = torch.cat([_forward(model, windows, batch, device) for batch in days.split(config.batch_days)]).cpu()
    counted, rises = windows.labelled(config.protocol)[days], windows.rises()[days]
    right = ((logits > 0) == rises)[counted]
    return float(loss_of(logits, rises, counted)), float(right.double().mean())


def _save(fit: Fit, file: Path) -> None:
    moments = {
        f"adam.{i}.{name}": value
        for i, state in fit.optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }
    generators = {"order": fit.order.get_state(), "dropout": fit.dropout.get_state()}
    model = {f"model.{name}": value for name, value in fit.model.state_dict().items()}
    best = {f"best.{name}": value for name, value in fit.best.items()}
    card = {"seed": fit.seed, "best_epoch": fit.best_epoch, "epochs": [asdict(epoch) for epoch in fit.epochs]}
    write_tensors(file, model | best | moments | generators, card)


def _restore(fit: Fit, file: Path) -> None:
    tensors, card = read_tensors(file)
    fit.model.load_state_dict(_under("model.", tensors))
    fit.best = _under("best.", tensors)
    fit.best_epoch = card["best_epoch"]
    fit.epochs = [Epoch(**epoch) for epoch in card["epochs"]]
    fit.order.set_state(tensors["order"])
    fit.dropout.set_state(tensors["dropout"])
    optimiser = fit.optimiser.state_dict()
    for name, value in _under("adam.", tensors).items():
        parameter, moment = name.split(".")
        optimiser["state"].setdefault(int(parameter), {})[moment] = value
    fit.optimiser.load_state_dict(optimiser)


def _under(prefix: str, tensors: Weights) -> Weights:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def fit_ensemble(
    train: Windows,
    validation: Windows,
    *,
    model_config: ModelConfig,
    config: TrainingConfig,
    seeds: tuple[int, ...],
    device: torch.device,
    state_folder: Path | None = None,
    on_epoch: Callable[[int, Epoch], None] = lambda _seed, _epoch: None,
) -> list[Fit]:
    """Train one member a seed, side by side on the cores of the machine, and return them in the order of the seeds.

    Each member computes on one thread, so the number of cores changes the time and never the weights. `on_epoch` is
    called with the seed, from the member's thread.
    """

    interrupted = Event()

    def after_epoch(seed: int, epoch: Epoch) -> None:
        on_epoch(seed, epoch)
        if interrupted.is_set():
            raise DtmlError(f"the training of seed {seed} was interrupted after epoch {epoch.number}")

    def fit(seed: int) -> Fit:
        state_file = None if state_folder is None else state_folder / f"member-{seed}.safetensors"
        return fit_member(
            train,
            validation,
            model_config=model_config,
            config=config,
            seed=seed,
            device=device,
            state_file=state_file,
            on_epoch=partial(after_epoch, seed),
        )

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        workers = min(len(seeds), threads) if device.type == "cpu" else 1
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                return [future.result() for future in [pool.submit(fit, seed) for seed in seeds]]
            except BaseException:
                interrupted.set()  # the other members stop after their epoch, which is saved
                raise
    finally:
        torch.set_num_threads(threads)


def stack_members(fits: list[Fit]) -> Weights:
    """The kept weights of all members, each parameter with a leading axis of members."""
    return {name: torch.stack([fit.best[name] for fit in fits]) for name in fits[0].best}
