"""The build process: results as they come, errors as themselves, deaths as errors."""
import os
import signal
import subprocess
import sys

import pytest

from fusec.codegen.result import BuildResult
from fusec.errors import BuildError, ResourceError
from fusec.runtime.worker import Worker


def double(x):
    print("noise on standard output")
    return 2 * x, os.getpid()


def torch_here():
    return sys.modules.get("torch") is not None


def fail(kind):
    if kind == "ours":
        raise ResourceError("needs 300 bytes")
    if kind == "other":
        raise ValueError("why")
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    sys.modules.pop("test_worker", None)
    found = Worker("json:loads")
    yield found
    found.close()


def job(name, *arguments):
    return (f"{__name__.rpartition('.')[2]}:{name}", arguments)


def test_results_of_several_jobs_each_from_a_process_of_its_own(worker):
    results = dict(worker.run([job("double", n) for n in range(5)]))
    assert {n: r[0] for n, r in results.items()} == {n: 2 * n for n in range(5)}
    assert len({r[1] for r in results.values()}) == 5
    assert dict(worker.run([job("double", 4)]))[0][0] == 8


def test_errors_arrive_and_the_worker_goes_on(worker):
    with pytest.raises(ResourceError, match="300 bytes"):
        list(worker.run([job("fail", "ours")]))
    with pytest.raises(BuildError, match="ValueError: why"):
        list(worker.run([job("fail", "other")]))
    with pytest.raises(BuildError, match="signal 11"):
        list(worker.run([job("fail", "dies")]))
    assert dict(worker.run([job("double", 1)]))[0][0] == 2


def test_a_build_has_no_torch(worker):
    assert dict(worker.run([job("torch_here")]))[0] is False


def test_what_a_build_gives_back_is_read_without_the_kernel_compiler():
    code = "import sys, fusec.runtime.worker, fusec.codegen.result; print([m for m in ('torch', 'cutlass') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    assert BuildResult.__module__ == "fusec.codegen.result"
