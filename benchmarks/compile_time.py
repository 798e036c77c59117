"""How long `fusec compile` takes from a cold start: a fresh store each time, two cores, nothing warm but the page cache.

    python -m benchmarks.compile_time [FILE] [--arch sm_90a] [--times 3]

Wall time and CPU time of the command and of all that it started. Run it on an idle machine: it keeps two cores busy.
"""
from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time


def once(file: str, arch: str, cores: set[int]) -> tuple[float, float]:
    """(wall, CPU) seconds of one cold compile."""
    with tempfile.TemporaryDirectory() as store:
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "fusec", "compile", file, "--arch", arch], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "FUSEC_CACHE_DIR": store}, preexec_fn=lambda: os.sched_setaffinity(0, cores))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="kimi_k3_decode")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    print(f"{options.file} for {options.arch} on {len(cores)} cores, load {os.getloadavg()[0]:.1f} before")
    for _ in range(options.times):
        wall, cpu = once(options.file, options.arch, cores)
        print(f"    {wall:6.2f} s wall, {cpu:6.2f} s CPU")


if __name__ == "__main__":
    main()
