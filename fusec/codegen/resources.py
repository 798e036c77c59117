"""What a kernel costs, read from its cubin and the assembler's remarks: no GPU and no CUDA tools needed.

Registers, stack, barriers and threads are attributes of the cubin's ELF file; the remarks alone tell the bytes spilled; opcodes
come from nvdisasm where one is found. Attribute numbers are those of the `.nv.info` sections that ptxas writes.
"""
from __future__ import annotations

import collections
import functools
import glob
import os
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InternalError

REGISTERS, STACK, BARRIERS, THREADS = 0x2F, 0x11, 0x4C, 0x10


@dataclass(frozen=True, slots=True)
class Resources:
    """Per thread: registers, bytes spilled (stores plus loads) and of stack. Per block: threads, barriers, bytes of shared memory.

    opcodes: how many of each instruction, by name; empty without a disassembler.
    """

    registers: int
    spills: int
    stack: int
    smem: int
    barriers: int
    threads: int
    code_bytes: int
    opcodes: tuple[tuple[str, int], ...] = ()


def sections(elf: bytes) -> dict[str, bytes]:
    """The sections of an ELF64 file by name."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    text = elf[rows[names][4]:]
    return {text[r[0]:text.index(b"\0", r[0])].decode(): b"" if r[1] == 8 else elf[r[4]:r[4] + r[5]] for r in rows}


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of a .nv.info section; formats 1 to 3 carry at most two bytes in place of a size."""
    at = 0
    while at + 4 <= len(data):
        form, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        yield kind, (data[at:at + size] if form == 4 else struct.pack("<I", size))
        at += size if form == 4 else 0


def spilled_bytes(remarks: str) -> int:
    """Bytes of spill stores and loads in ptxas' remarks, which wrap where they like."""
    flat = " ".join(remarks.split())
    return sum(int(a) + int(b) for a, b in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", flat))


@functools.cache
def disassembler() -> str | None:
    """An nvdisasm: NVDISASM, the path, or the wheel beside the DSL."""
    wheels = glob.glob(os.path.join(sysconfig.get_path("purelib"), "nvidia/*/bin/nvdisasm"))
    return os.environ.get("NVDISASM") or shutil.which("nvdisasm") or next(iter(sorted(wheels)), None)


def sass(cubin: bytes) -> str:
    """The machine code as text; '' without a disassembler that knows it."""
    tool = disassembler()
    if tool is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout


def opcodes(text: str) -> tuple[tuple[str, int], ...]:
    """How many of each instruction, by name."""
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", text)
    return tuple(sorted(collections.Counter(found).items()))


def used_stack(cubin: bytes) -> bool:
    """Whether any kernel of a cubin has a stack: it spills, or indexes a local array."""
    return any(struct.unpack("<II", data)[1] for kind, data in attributes(sections(cubin)[".nv.info"]) if kind == STACK)


def resources(cubin: bytes, remarks: str, smem: int, disassemble: bool = False) -> Resources:
    """The resources of the kernels in a cubin (one function, perhaps with several hints): of each number the largest.

    Raises InternalError for a cubin without a kernel.
    """
    parts = sections(cubin)
    kernels = [name.removeprefix(".nv.info.") for name in parts if name.startswith(".nv.info.")]
    symbols = [parts[".strtab"][i:].split(b"\0", 1)[0].decode() for i, in struct.iter_unpack("<I20x", parts[".symtab"])]
    scalars = {(kind, symbols[at]): value for kind, data in attributes(parts[".nv.info"]) if kind in (REGISTERS, STACK)
               for at, value in (struct.unpack("<II", data),)}
    kernels = [k for k in kernels if (REGISTERS, k) in scalars and f".text.{k}" in parts]
    if not kernels:
        raise InternalError("a cubin without kernels")
    mine = [dict(attributes(parts[".nv.info." + k])) for k in kernels]
    threads = max(struct.unpack("<III", m[THREADS])[0] if THREADS in m else 0 for m in mine)
    stack, barriers = max(scalars.get((STACK, k), 0) for k in kernels), max(m.get(BARRIERS, b"\0")[0] for m in mine)
    return Resources(max(scalars[REGISTERS, k] for k in kernels), spilled_bytes(remarks), stack, smem, barriers, threads,
                     max(len(parts[".text." + k]) for k in kernels), opcodes(sass(cubin)) if disassemble else ())
