"""The DSL compiles the hand-written kernels of these tests, and refuses what the emulator refuses: the spellings are its own."""
import importlib.util

import pytest

from . import test_async as copies
from . import test_clusters as clusters
from . import test_mbarriers as bulk
from .support import kernel

pytestmark = pytest.mark.slow
COPY = copies.ATOM + copies.COMMIT + copies.WAIT + "out[thread] = sA[thread]"
TAKEN = {
    "named barriers": kernel(copies.ROLES, threads=128), "ring": kernel(copies.RING), "copy": kernel(COPY),
    "uniform": kernel("role = cute.arch.make_warp_uniform(thread // 32)\nif role == 1:\n    out[thread] = x[thread]"),
    "dependent": kernel("cute.arch.griddepcontrol_wait()\ncute.arch.griddepcontrol_launch_dependents()\nout[thread] = x[thread]"),
    "pull": kernel(clusters.PULL, **clusters.SHAPE), "push": kernel(clusters.PUSH, **clusters.SHAPE),
    "bulk": kernel(bulk.STREAM),
    "places": kernel("a, _, _ = cute.arch.block_in_cluster_idx()\np, _, _ = cute.arch.cluster_idx()\n"
                     "n, _, _ = cute.arch.block_in_cluster_dim()\ng, _, _ = cute.arch.cluster_dim()\n"
                     "out[thread] = Float32(a + p + n + g + cute.arch.cluster_size())", blocks=4, cluster=4),
}
REFUSED = {
    "past L1 by 4 bytes": kernel(COPY.replace("G2SOp()", "G2SOp(cute.nvgpu.cpasync.LoadCacheMode.GLOBAL)")),
    "2 bytes": kernel(COPY.replace("per_copy=32", "per_copy=16")), "groups": kernel(COPY.replace("group(0)", "group(thread)")),
    "to global memory": kernel(COPY.replace("def_x, tile(sA", "def_x, tile(out")),
    "number": kernel("cute.arch.barrier(barrier_id=16)\nout[thread] = x[thread]"),
    "count": kernel("cute.arch.barrier(barrier_id=1, number_of_threads=40)\nout[thread] = x[thread]"),
}


def compiled(source, tmp_path):
    pytest.importorskip("cutlass")
    import cutlass.cute as cute
    from cutlass import Float32
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
    path = tmp_path / "by_hand.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("by_hand", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, out = (make_fake_tensor(Float32, (cute.sym_int64(),), (1,), assumed_align=16) for _ in range(2))
    return cute.compile(module.launch, x, out, make_fake_stream(use_tvm_ffi_env_stream=True),
                        options="--enable-tvm-ffi --gpu-arch sm_90a")


@pytest.mark.parametrize("name", TAKEN)
def test_a_kernel_compiles(name, tmp_path):
    compiled(TAKEN[name], tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_is_refused(name, tmp_path):
    with pytest.raises(Exception):  # noqa: B017 (every layer of the compiler raises its own)
        compiled(REFUSED[name], tmp_path)
