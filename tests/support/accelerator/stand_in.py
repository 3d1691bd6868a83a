"""A strict stand-in for an accelerator: a device of torch's own kind for private back ends, which
computes on the CPU.

Its tensors hold real numbers and refuse what an accelerator refuses: a tensor or a generator of
another device in the same operation, NumPy, and the state of another device's generator. What a
CUDA device accepts without a word, such as an index that lies on the CPU, is refused too: it would
wait for a copy. A tensor of no axis passes, as it does there.

What it does not notice: a generator of its own in an operation of the CPU, and the library kernels
of a real device. It needs what torch calls experimental:
`torch.utils.backend_registration._setup_privateuseone_for_python_backend`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

NAME = "standin"
MISSING = f"torch {torch.__version__} has no back end in Python for a private device"
PLAIN_GENERATOR = torch.Generator
LIBRARY = torch.library.Library("aten", "IMPL")
GENERATORS: "WeakSet[Generator]" = WeakSet()
SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
MARK = 77  # the first byte of the state of one of its generators

PACKS = "aten::_pack_padded_sequence"  # takes lengths and gives sizes of batches on the CPU
BETWEEN = {"aten::copy_", "aten::_copy_from", PACKS, "aten::_pack_padded_sequence_backward"}


class StandIn(torch.Tensor):
    """A tensor of the device; `raw` holds its numbers on the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "StandIn":
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    def __repr__(self, **_: Any) -> str:
        return f"StandIn({self.raw})"

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in {"lstm", "lstm_cell"}:
            return _lstm(getattr(torch, name), *args, *(kwargs or {}).values())
        if name == "tolist":
            return args[0].raw.tolist()  # torch has none for a class of tensors
        if func == SET_DATA:
            args[0].raw = args[1].raw
        with torch._C.DisableTorchFunctionSubclass():  # what comes back is what it is
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        told = dict(kwargs or {})
        _refuse_mixed(func, args, told)
        device = (
            torch.device(told["device"]) if told.get("device") is not None else torch.device(NAME)
        )
        if "device" in told:
            told["device"] = torch.device("cpu")
        told.pop("pin_memory", None)
        found = func(*tree_map(_raw, tuple(args)), **tree_map(_raw, told))
        if func._schema.name == PACKS:
            return StandIn(found[0]), found[1]
        if device.type == NAME:
            found = tree_map(_wrapped, found)
        return (
            found
            if device.type == "cpu"
            else return_and_correct_aliasing(func, tuple(args), kwargs or {}, found)
        )


class Generator(torch.Generator):
    """A generator of either device, which remembers whose it is."""

    def __new__(cls, _device: Any = "cpu") -> "Generator":
        return super().__new__(cls, "cpu")  # type: ignore[no-any-return]

    def __init__(self, device: Any = "cpu") -> None:
        self.of = torch.device(device).type
        GENERATORS.add(self)

    def get_state(self) -> torch.Tensor:
        state = super().get_state()
        return (
            torch.cat([torch.tensor([MARK], dtype=torch.uint8), state])
            if self.of == NAME
            else state
        )

    def set_state(self, state: torch.Tensor) -> "Generator":  # type: ignore[override]
        size = len(super().get_state())
        if len(state) != size + (self.of == NAME):
            raise RuntimeError(f"RNG state is wrong size: it is not of a generator of {self.of}")
        return super().set_state(state[-size:].clone())


def _device_of(generator: torch.Generator) -> str:
    """Whose a generator is; an operation sees it in another object, so its state tells."""
    state = PLAIN_GENERATOR.get_state(generator)
    mine = (
        each
        for each in GENERATORS
        if each.of == NAME and torch.equal(PLAIN_GENERATOR.get_state(each), state)
    )
    return "cpu" if next(mine, None) is None else NAME


def _raw(each: Any) -> Any:
    return each.raw if isinstance(each, StandIn) else each


def _wrapped(each: Any) -> Any:
    return (
        StandIn(each) if isinstance(each, torch.Tensor) and not isinstance(each, StandIn) else each
    )


def _refuse_mixed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    given = tree_flatten([list(args), dict(kwargs)])[0]
    named = [
        *zip((each.name for each in func._schema.arguments), args, strict=False),
        *kwargs.items(),
    ]
    written = {each.name for each in func._schema.arguments if each.is_write}
    changed = {id(value) for name, value in named if name in written}
    here = any(isinstance(each, StandIn) for each in given)
    for each in given:
        if isinstance(each, PLAIN_GENERATOR) and here and _device_of(each) != NAME:
            raise RuntimeError(f"{func}: expected a generator of {NAME}, found one of the CPU")
        if (
            not isinstance(each, torch.Tensor)
            or isinstance(each, StandIn)
            or func._schema.name in BETWEEN
        ):
            continue
        if here and (each.dim() or id(each) in changed):
            raise RuntimeError(
                f"{func}: expected all tensors to be on {NAME}, found one on {each.device}"
            )


def _lstm(of_cpu: Any, *args: Any) -> Any:
    """Torch's LSTM, which on an accelerator is a library's: computed by the CPU's, whose gradients
    reach the device.

    Of packed rows, the sizes of the batches lie on the CPU.
    """
    given = [each for each in tree_flatten(list(args))[0] if isinstance(each, torch.Tensor)]
    astray = [
        each for each in given if not isinstance(each, StandIn) and each.dtype.is_floating_point
    ]
    if astray:
        raise RuntimeError(
            f"lstm: expected all tensors to be on {NAME}, found one on {astray[0].device}"
        )
    found = of_cpu(
        *tree_map(lambda each: each.cpu() if isinstance(each, StandIn) else each, list(args))
    )
    return tree_map(lambda each: each.to(NAME), found)


def _empty(size: Any, **how: Any) -> StandIn:
    return StandIn(torch.empty(size, dtype=how.get("dtype")))


def _empty_strided(size: Any, stride: Any, **how: Any) -> StandIn:
    return StandIn(torch.empty_strided(size, stride, dtype=how.get("dtype")))


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """What torch.tensor does, below any dispatch to Python."""
    _raw(target).copy_(_raw(source))
    return target


HAS_BACK_END = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
if HAS_BACK_END:  # here, as torch counts its devices at the first backward pass of a process
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
    LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
    LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")


@contextmanager
def on_stand_in() -> Iterator[torch.device]:
    """The device, with generators that belong to one device or the other; skips
    where this torch cannot have it.
    """
    if not HAS_BACK_END:
        pytest.skip(MISSING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", Generator)
        yield torch.device(NAME)
