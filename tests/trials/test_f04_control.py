"""F04: Python's control flow is unrolled where it is static, and refused at its line where it hangs on a value."""
import pytest
import torch

import fusec

from .steps import right
from .test_f01_messages import lines_of

HAS_BIAS, NO_BIAS, TAPS = True, False, 4


def module_flag(x, w, b):
    y = x * w
    if HAS_BIAS:
        y = y + b
    if NO_BIAS:
        y = y * 1000.0
    return y


def a_loop_over_taps(x, w, b):
    total = torch.zeros_like(x)
    for i in range(TAPS):
        total = total + x * w * float(i + 1)
    return total + b


def break_and_continue(x, w, b):
    for i in range(10):
        if i == 1:
            continue
        if i > 3:
            break
        x = x + w * i
    return x + b


def early_return(x, w, b):
    if x.dim() == 2:
        return x * w
    return x + b


def none_argument(x, w, b=None):
    return x * w if b is None else x * w + b


def by_static_shape(x, w, b):
    if x.shape[1] > 8:
        return x * w
    return x + b


def by_dtype(x, w, b):
    return x * w if x.dtype == torch.float32 else x + b


def a_while_loop(x, w, b):
    n = 3
    while n > 0:
        x, n = x * w, n - 1
    return x + b


def comprehension(x, w, b):
    return sum([x * float(i) for i in range(1, 4)]) * w + b


def a_list_of_parts(x, w, b):
    first, second = (x * w).chunk(2, dim=-1)
    return torch.cat([second, first], -1) + b


STATIC = [module_flag, a_loop_over_taps, break_and_continue, early_return, none_argument, by_static_shape, by_dtype, a_while_loop,
          comprehension, a_list_of_parts]


def given(rows=3):
    return dict(x=torch.randn(rows, 16), w=torch.randn(16), b=torch.randn(16))


@pytest.mark.parametrize("fn", STATIC, ids=lambda f: f.__name__)
def test_static_control_is_unrolled(fn, level):
    right(fn, given(), level)


def test_an_argument_that_is_none(level):
    right(none_argument, dict(given(), b=None), level)


def ternary_on_a_tensor(x, w, b):
    return x * w if x.amax() > 0 else x + b


def and_of_tensors(x, w, b):
    return x * w if x.any() and w.any() else b + x


def loop_until(x, w, b):
    for _ in range(5):
        if (x > 1).any():
            break
        x = x * w
    return x + b


VALUES = [ternary_on_a_tensor, and_of_tensors, loop_until]


@pytest.mark.parametrize("fn", VALUES, ids=lambda f: f.__name__)
def test_control_that_hangs_on_a_value_is_refused_at_its_line(fn):
    with pytest.raises(fusec.CaptureError) as caught:
        fusec.compile(fn, given(), arch="sm_90a")
    text = str(caught.value)
    line = int(text.split("test_f04_control.py:")[1].split(":")[0])
    assert line in lines_of(fn), text


def by_rows(x, w, b):
    if x.shape[0] > 1:
        return x * w
    return x + b


def by_rows_in_arithmetic(x, w, b):
    return x * w * float(x.shape[0]) + b


def test_a_branch_on_the_number_of_rows_is_right_at_one_row_or_refused(level):
    """Captured with a dynamic dim, this has no guard and a wrong result at one row."""
    try:
        for rows in (1, 2, 5):
            right(by_rows, given(rows), level, given())
    except fusec.FusecError as refusal:
        assert "row" in str(refusal) and "test_f04_control.py" in str(refusal)


def test_the_number_of_rows_as_a_value(level):
    try:
        for rows in (1, 5):
            right(by_rows_in_arithmetic, given(rows), level, given())
    except fusec.FusecError as refusal:
        assert str(refusal)
