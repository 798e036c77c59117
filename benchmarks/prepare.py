"""Compiling what a run needs, before it needs it: one process per kernel fills a store, many at once."""
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .cases import Subject

ROOT = Path(__file__).parents[1]


def command(subject: Subject, archs: Sequence[str]) -> list[str]:
    """The command line that compiles a subject."""
    defines = [part for name, value in subject.sizes for part in ("-D", f"{name}={value}")]
    return [sys.executable, "-m", "fusec", "compile", f"{subject.recipe}:{subject.function}", "--arch", ",".join(archs), *defines,
            "--json"]


def compile_all(subjects: Sequence[Subject], archs: Sequence[str], say: Callable[[str], None],
                done: Callable[[Subject], object] = lambda subject: None) -> dict[Subject, str]:
    """Compile every subject into the store that FUSEC_CACHE_DIR names; {subject: what was said} of those that failed.

    done: is told of each that is in the store, from other threads.
    """
    at_once = max(1, len(os.sched_getaffinity(0)) // 2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def one(subject: Subject) -> tuple[Subject, str]:
        run = subprocess.run(command(subject, archs), capture_output=True, text=True, env=environment)
        say(f"{subject.name} {subject.label}: {'compiled' if run.returncode == 0 else 'failed'}")
        if run.returncode == 0:
            done(subject)
        return subject, "" if run.returncode == 0 else run.stderr.strip() or f"exit status {run.returncode}"

    with ThreadPoolExecutor(at_once) as pool:
        return {subject: error for subject, error in pool.map(one, subjects) if error}
