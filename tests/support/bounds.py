"""How far two numbers may lie apart on any processor: each bound has a name, and its docstring says
why it holds.

Processors differ in the order in which they add and in the instructions they have for it, so the
same product of matrices ends in other last digits. What follows is the rule of these tests:

- A law of equality compares bits that one process made: `torch.equal`, `==`. It needs no bound.
- A law of arithmetic is tested in float64, over one pass or a training: `float64_by_default` makes
  tensors so.
- Where float32 is what is tested, one pass is compared, never a training of several steps: Adam
  divides a gradient by its size, so it makes a whole step of one that is nothing but the noise of
  rounding.
- What a seed draws is the same on every processor, up to its last digits: a statistic of it that
  lies within its bound lies there everywhere.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

FLOAT64_RELATIVE = 1e-9
FLOAT64_ABSOLUTE = 1e-12
FLOAT32_RELATIVE = 1e-4
FLOAT32_ABSOLUTE = 1e-5


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """Let every tensor and weight of a test be float64, also those of a training.

    The code that is tested is the same; its numbers are 29 bits longer. A gradient that is 0 but
    for rounding is 1e-17 then, a billionth of the 1e-8 that Adam adds to its size: it moves no
    weight. In float32 it is as large as that 1e-8, and the step it makes is any.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def in_float64(expected: Any, *, nan_ok: bool = False) -> Any:
    """The same formula of float64, computed in another order: equal to 1e-9, or to 1e-12 where it
    is 0.

    A sum of n terms is off by at most n eps sum|terms|, eps = 1.1e-16. Ten thousand terms lose
    1e-12 of their size, which leaves a factor of a thousand for terms that cancel each other. 1e-12
    is that of numbers around 1.
    """
    return pytest.approx(expected, rel=FLOAT64_RELATIVE, abs=FLOAT64_ABSOLUTE, nan_ok=nan_ok)


def in_float32(expected: Any, *, nan_ok: bool = False) -> Any:
    """The same formula over one pass in float32: equal to 1e-4, or to 1e-5 where it is 0.

    eps is 6e-8; the passes of these tests sum at most a thousand terms of sizes around 1 one after
    another, which is off by at most 6e-5, and by a thirtieth of that when the signs of the errors
    are mixed.
    """
    return pytest.approx(expected, rel=FLOAT32_RELATIVE, abs=FLOAT32_ABSOLUTE, nan_ok=nan_ok)


def assert_close_in_float64(found: Tensor, expected: Tensor) -> None:
    """Assert that tensors of float64 are equal as by `in_float64`; layers after each other multiply
    what one loses.

    Refuses float32, whose digits end before the bound.
    """
    assert found.dtype == expected.dtype == torch.float64, (
        f"{found.dtype} and {expected.dtype} are not both float64"
    )
    torch.testing.assert_close(found, expected, rtol=FLOAT64_RELATIVE, atol=FLOAT64_RELATIVE)


def assert_close_in_float32(found: Tensor, expected: Tensor) -> None:
    """Assert that tensors are equal as by `in_float32`: of one pass, never of a training."""
    torch.testing.assert_close(found, expected, rtol=FLOAT32_RELATIVE, atol=FLOAT32_ABSOLUTE)


def assert_gradients_close_in_float32(found: Tensor, expected: Tensor) -> None:
    """Assert that the gradients of one step are equal to 1e-4 of their length: n terms lose n 6e-8
    of it.

    A single element may cancel to nothing and be of any relative size; what a step does is in its
    length.
    """
    assert (found - expected).norm() <= FLOAT32_RELATIVE * expected.norm()


def assert_arrays_close_in_float64(found: Any, expected: Any) -> None:
    """Assert that arrays or columns are equal as by `in_float64`; what is
    missing is missing in both.
    """
    np.testing.assert_allclose(found, expected, rtol=FLOAT64_RELATIVE, atol=FLOAT64_ABSOLUTE)


def assert_arrays_cast_to_float32(found: Any, expected: Any) -> None:
    """Assert that an array is what float64 gave, rounded to float32 once: by half a unit of its
    last place, 2^-24.

    What float64 itself lost may tip it to the next one, so a whole unit is allowed.
    """
    np.testing.assert_allclose(found, expected, rtol=2.0**-23, atol=FLOAT64_ABSOLUTE)


def as_printed(expected: Any, decimals: int) -> Any:
    """A figure that others printed with so many decimals: ours may be anything that rounds to it.

    The last digits of float64 decide only where the figure lies within 1e-9 of the edge of what
    rounds to it.
    """
    return pytest.approx(expected, rel=0, abs=0.5 * 10.0**-decimals + FLOAT64_RELATIVE)


def as_drawn(expected: Any, *, within: float = 0.0, share: float = 0.0) -> Any:
    """A statistic of what a seed draws is about what is expected: so close to it, or within a share
    of it.

    The draws are integers made from the seed, the same on every processor; the floats made of them,
    and what is computed without training, agree to rounding. So the statistic is one number
    everywhere, to 1e-6 of it, and a test that passes with more room than that on one processor
    passes on all. How wide the bound is, in standard errors, decides what the test would find, not
    where it holds.
    """
    return pytest.approx(expected, rel=share, abs=within)


def as_solved(expected: Any, tolerance: float) -> Any:
    """The answer of an iterative solver, which stops within a tolerance of its own, and later on no
    processor.

    `tolerance`, relative or absolute, is at least ten times what the solver of either side stops
    at.
    """
    return pytest.approx(expected, rel=tolerance, abs=tolerance)
