"""The kernel compiler's one-time work, done before there is anything to compile: a kernel of three lines goes through all of it."""
from __future__ import annotations

from ..errors import BuildError
from ..ir.kernel import KernelSpec, Launch, Parameter
from ..ir.plan import SmemPlan
from ..target import DEFAULT
from .build import build

SOURCE = """import cutlass.cute as cute


@cute.kernel
def warm_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = x[thread] + 1.0


@cute.jit
def launch(x: cute.Tensor, stream):
    warm_kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)
"""


def warm_up() -> None:
    """Compile and drop a tiny kernel. A compiler that is missing or refuses says so with the first real job."""
    arch = DEFAULT[-1]
    parameters = (Parameter("x", "f32", ("n",), (1,), 4, (1,)),)
    spec = KernelSpec("warm", "warm", arch, parameters, Launch(((1,), (), ()), 32), SmemPlan(), ())
    try:
        build(SOURCE, spec, arch, "fusec_warm", False)
    except BuildError:
        pass
