import pytest
import torch

from fusec.checker.ulp import MANTISSA, same_bits, ulp_distance, ulp_of

TYPES = [t for t in MANTISSA if t != torch.float64]
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_each_number_of_a_type_is_one_ulp_from_the_next(dtype):
    count = 1 << 8 if dtype.itemsize == 1 else 1 << 15
    patterns = torch.arange(0, count // 2, dtype=torch.int64).to({1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
    numbers = patterns.view(dtype)
    numbers = numbers[numbers.float().isfinite()]
    assert (numbers.double().diff() > 0).all()
    far = ulp_distance(numbers[1:].clone(), numbers[:-1].clone())
    assert (far == 1).all()
    negative = (-numbers.float()).to(dtype)
    assert ulp_distance(numbers, negative).tolist() == (2 * torch.arange(len(numbers))).tolist()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_spacing_is_the_distance_to_the_next_number(dtype):
    values = torch.tensor([1.0, 1.5, 3.0, 0.0078125, 200.0]).to(dtype)
    bits = values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
    above = (bits + 1).view(dtype)
    assert torch.equal(ulp_of(values.double(), dtype), above.double() - values.double())
    assert ulp_of(torch.zeros(1).double(), dtype).item() > 0


def test_nan_infinity_and_zeros():
    a = torch.tensor([NAN, NAN, 0.0, INF, INF, -INF])
    b = torch.tensor([NAN, 1.0, -0.0, INF, -INF, -INF])
    far = ulp_distance(a, b)
    assert far[0] == 0 and far[1] > 2 ** 33 and far[2] == 0 and far[3] == 0 and far[4] > 1 and far[5] == 0


def test_same_bits_tells_zeros_apart_and_not_nans():
    a, b = torch.tensor([0.0, NAN, 1.0]), torch.tensor([-0.0, -NAN, 1.0])
    assert same_bits(a, b).tolist() == [False, True, True]
    assert same_bits(torch.tensor([True, False]), torch.tensor([True, True])).tolist() == [True, False]


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="one floating type"):
        ulp_distance(torch.zeros(1), torch.zeros(1).bfloat16())
    with pytest.raises(TypeError, match="one floating type"):
        ulp_distance(torch.zeros(1).int(), torch.zeros(1).int())
