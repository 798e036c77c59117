"""The trials of contract.md: each report's whole kind, as an interpreted kernel by default, as the emitted file in the set of
emulation, and on a GPU where there is one."""
import pytest
import torch


@pytest.fixture(params=["kernel", pytest.param("emulate", marks=pytest.mark.emulation), pytest.param("gpu", marks=pytest.mark.gpu)])
def level(request):
    return request.param


@pytest.fixture
def device(level):
    return "cuda" if level == "gpu" else "cpu"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)
