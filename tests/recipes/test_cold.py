"""Every recipe, compiled by the command line for both architectures from a cold store, two commands at a time."""
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fusec.recipes

MOST_SECONDS = 240


@pytest.mark.cold
def test_every_recipe_from_a_cold_store_in_four_minutes(tmp_path):
    files = sorted(f for f in Path(fusec.recipes.__path__[0]).glob("*.py") if f.name != "__init__.py")

    def compiled(file):
        command = [sys.executable, "-m", "fusec", "compile", str(file), "--arch", "sm_90a,sm_100a", "--json"]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "FUSEC_CACHE_DIR": str(tmp_path)})
    begin = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(compiled, files))
    seconds = time.perf_counter() - begin
    kernels = []
    for file, run in zip(files, ended, strict=True):
        assert run.returncode == 0, (file.name, run.stderr)
        found = json.loads(run.stdout)["kernels"]
        assert {k["arch"] for k in found} == {"sm_90a", "sm_100a"} and not any(k["spills"] for k in found), (file.name, found)
        kernels += found
    print(f"\n{len(kernels)} kernels of {len(files)} files in {seconds:.0f} s")
    assert len(kernels) == len({k["key"] for k in kernels}) and seconds < MOST_SECONDS
