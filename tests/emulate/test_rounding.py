"""Rounding and fma against torch, over random bit patterns, midpoints and edges."""
from fractions import Fraction

import numpy as np
import pytest
import torch

from fusec.emulate.rounding import LIMITS, ROUND, decode, encode, fma
from fusec.ir.reference import PRIMITIVE_MEANING

from .support import same_numbers

NARROW = {"bf16": torch.bfloat16, "f16": torch.float16, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
COUNT = 100_000


def patterns(seed):
    return torch.randint(-2**31, 2**31, (COUNT,), generator=torch.Generator().manual_seed(seed)).to(torch.int32).view(torch.float32)


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", NARROW)
def test_rounding_is_torchs(name):
    x = patterns(1)
    near = torch.randn(COUNT, generator=torch.Generator().manual_seed(2)) * torch.logspace(-9, 5, COUNT)
    for values in (x, near):
        mine, want = torch.from_numpy(ROUND[name](values.numpy())), values.to(NARROW[name]).float()
        if name in LIMITS:  # The hardware saturates e5m2 where torch gives infinity; e4m3 saturates in both.
            want = want.clamp(-LIMITS[name][2], LIMITS[name][2])
        assert same_numbers(mine, want)


@pytest.mark.parametrize("name", NARROW)
def test_midpoints_go_to_even(name):
    bits = torch.arange(256).to(torch.uint8) if name in LIMITS else torch.arange(65536).to(torch.int16)
    values = bits.view(NARROW[name]).float()
    values = values[values.isfinite()].unique()
    middle = ((values[1:].double() + values[:-1].double()) / 2).float()
    assert same_numbers(torch.from_numpy(ROUND[name](middle.numpy())), middle.to(NARROW[name]).float())


@pytest.mark.parametrize("name", NARROW)
def test_bits_go_to_values_and_back(name):
    wide = name not in LIMITS
    every = torch.arange(65536 if wide else 256, dtype=torch.int32).to(torch.int16 if wide else torch.uint8)
    value = every.view(NARROW[name]).float()
    bits = every.numpy().view(np.uint16) if wide else every.numpy()
    assert same_numbers(torch.from_numpy(decode(bits, name)), value)
    finite = ~value.isnan().numpy()
    assert (encode(value.numpy(), name)[finite] == bits[finite]).all()


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-38, 1e18])
def test_fma_rounds_once(scale):
    g = torch.Generator().manual_seed(3)
    a, b, c = (torch.randn(COUNT, generator=g) * scale for _ in range(3))
    c = c * torch.exp2(torch.randint(-40, 40, (COUNT,), generator=g).float())
    assert same_numbers(torch.from_numpy(fma(a.numpy(), b.numpy(), c.numpy())), PRIMITIVE_MEANING["fma"](a, b, c))


def test_fma_near_midpoints():
    g = torch.Generator().manual_seed(4)
    a, b = (torch.randint(4096, 8192, (COUNT,), generator=g).float() for _ in range(2))
    c = torch.exp2(-torch.randint(20, 60, (COUNT,), generator=g).float()) * torch.randint(-1, 2, (COUNT,), generator=g)
    mine = torch.from_numpy(fma(a.numpy(), b.numpy(), c.numpy()))
    assert same_numbers(mine, PRIMITIVE_MEANING["fma"](a, b, c))
    for i in range(0, COUNT, 997):
        true = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        here = Fraction(float(mine[i]))
        for other in (torch.nextafter(mine[i], torch.tensor(torch.inf)), torch.nextafter(mine[i], torch.tensor(-torch.inf))):
            assert abs(here - true) <= abs(Fraction(float(other)) - true)


def test_fma_of_all_patterns():
    a, b, c = patterns(5), patterns(6), patterns(7)
    assert same_numbers(torch.from_numpy(fma(a.numpy(), b.numpy(), c.numpy())), PRIMITIVE_MEANING["fma"](a, b, c))
