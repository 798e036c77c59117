"""Every test run compiles into a store of its own, never into the user's."""
import logging
import os

import pytest
import torch

logging.getLogger("torch.__trace").setLevel(logging.CRITICAL + 1)  # Records of every capture: they cost more than the tests.
torch.set_num_threads(1)  # Small tensors: threads cost more than they bring.


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write golden texts anew instead of comparing with them")


@pytest.fixture
def update_golden(request):
    """Whether golden texts are to be written anew."""
    return request.config.getoption("--update-golden")


@pytest.fixture(scope="session", autouse=True)
def _own_store(tmp_path_factory):
    before = os.environ.get("FUSEC_CACHE_DIR")
    os.environ["FUSEC_CACHE_DIR"] = str(tmp_path_factory.mktemp("store"))
    yield
    if before is None:
        del os.environ["FUSEC_CACHE_DIR"]
    else:
        os.environ["FUSEC_CACHE_DIR"] = before
