"""Source text → object: runs the kernel compiler on an emitted file.

The compiler is not safe in threads, and takes its process along when it dies: `build` is for a child process (runtime/worker.py).
Importing this module brings the compiler in.
"""
from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BuildError, InternalError
from ..ir.kernel import KernelSpec, Parameter
from ..ir.sizes import factors
from ..target import parse
from .resources import resources, used_stack
from .result import BuildResult
from .spell import TYPES
from .toolchain import INSTALL, check_toolchain

try:
    import cutlass  # type: ignore[import-not-found,unused-ignore]
    import cutlass.cute as cute  # type: ignore[import-not-found,unused-ignore]
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor  # type: ignore[import-not-found,unused-ignore]
except ImportError as error:
    MISSING: str = str(error)
else:
    MISSING = ""


def build(source: str, spec: KernelSpec, arch: str, name: str, disassemble: bool = False) -> BuildResult:
    """Compile an emitted file for `arch` and export its `launch` under `name`, which must be unique among the objects of a process.

    Raises BuildError where the compiler is missing, does not fit, or refuses the file; TargetError for an unknown arch.
    """
    check_toolchain()
    if MISSING:
        raise BuildError(f"the kernel compiler does not import: {MISSING}", hint=INSTALL)
    parse(arch)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fusec_") as folder:
        log = Path(folder, "log")
        try:
            compiled = _compile(source, spec, arch, folder, log)
        except Exception:
            compiled = None
        try:
            if compiled is None or used_stack(compiled.__cubin__):  # Once more with locations: they cost half of the time.
                compiled = _compile(source, spec, arch, folder, log, remarks=True)
            target = Path(folder, "kernel.o")
            compiled.export_to_c(object_file_path=str(target), function_name=name)
        except Exception as error:
            raise _refused(error, source, spec, arch, log) from None
        found = resources(compiled.__cubin__, log.read_text(errors="replace"), spec.smem.total, disassemble)
        return BuildResult(target.read_bytes(), compiled.__ptx__, compiled.__cubin__, asdict(found), time.perf_counter() - begin)


def _compile(source: str, spec: KernelSpec, arch: str, folder: str, log: Path, remarks: bool = False) -> Any:
    """remarks: ptxas says how many bytes it spills, and diagnostics name the emitted line."""
    path = Path(folder, f"{spec.name}.py")
    path.write_text(source, encoding="utf-8")
    module = _imported(path)
    arguments = [*fake_tensors(spec.parameters), make_fake_stream(use_tvm_ffi_env_stream=True)]
    options = f"--enable-tvm-ffi --gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {folder}{' remarks{ptx}' if remarks else ''}"
    with _printed_to(log):
        return cute.compile(module.launch, *arguments, options=options)


def _imported(path: Path) -> ModuleType:
    """The emitted file as a module: the DSL reads its source again through inspect."""
    spec = importlib.util.spec_from_file_location(f"fusec_emitted_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InternalError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def fake_tensors(parameters: tuple[Parameter, ...]) -> list[Any]:
    """Stand-ins that tell the compiled entry what to check: dtype, rank, sizes (one symbol, one size), strides, alignment."""
    symbols: dict[str, Any] = {}

    def symbol(name: str) -> Any:
        return symbols.setdefault(name, cute.sym_int64(symbol=name if name.isidentifier() else None))

    def size(extent: int | str) -> Any:
        split = factors(extent)
        if split is None or not split[1]:
            return extent if isinstance(extent, int) else symbol(extent)
        product = symbol(split[1][0])
        for factor in (*map(symbol, split[1][1:]), *((split[0],) if split[0] != 1 else ())):
            product = product * factor
        return product

    def fake(p: Parameter) -> Any:
        divisible = p.divisible or (1,) * len(p.shape)
        strides = tuple(cute.sym_int64(divisibility=by) if s is None else s for s, by in zip(p.strides, divisible, strict=True))
        return make_fake_tensor(getattr(cutlass, TYPES[p.dtype]), tuple(map(size, p.shape)), strides, assumed_align=p.align)

    return [fake(p) for p in parameters]


@contextlib.contextmanager
def _printed_to(path: Path) -> Iterator[None]:
    """What the compiler prints, by file descriptor, goes to a file."""
    sys.stdout.flush(), sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with open(path, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def emitted_line(error: BaseException, file: str, said: str) -> int | None:
    """The line of the emitted file that a failure is about: from its traceback, else from the compiler's words."""
    frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if os.path.basename(f.filename) == file]
    named = re.findall(rf'{re.escape(file)}"?(?::|", line |, line )(\d+)', said)
    found = [int(n) for n in named] or [n for n in frames if n]
    return found[-1] if found else None


def reference_line(source: str, line: int) -> str:
    """The provenance comment that covers a line of an emitted file; '' where none does."""
    for text in reversed(source.splitlines()[:line]):
        match = re.match(r"\s*# (\w+\+\d+.*)", text)
        if match:
            return match.group(1)
        if text.startswith(("def ", "@")):
            break
    return ""


def _refused(error: Exception, source: str, spec: KernelSpec, arch: str, log: Path) -> BuildError:
    said = log.read_text(errors="replace") if log.exists() else ""
    message = f"the kernel compiler refused {spec.name} for {arch}: {type(error).__name__}: {str(error).strip()[:2000]}"
    line = emitted_line(error, f"{spec.name}.py", str(error) + said)
    if line is not None:
        text = source.splitlines()[line - 1].strip() if line <= source.count("\n") else ""
        message += f"\nemitted line {line}: {text}"
        origin = reference_line(source, line)
        message += f"\nfrom reference line {origin}" if origin else ""
    tail = said.strip()[-1500:]
    return BuildError(message + (f"\n{tail}" if tail else ""), hint="a defect of fusec: please report it with this text")

