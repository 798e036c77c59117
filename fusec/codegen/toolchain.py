"""Whether the kernel compiler is here, in versions that fit together: looked up in package metadata, nothing imported."""
from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distributions, version

from ..errors import BuildError

DSL, FFI = "nvidia-cutlass-dsl", "apache-tvm-ffi"
DSL_RANGE, FFI_RANGE = ((4, 8), (4, 9)), ((0, 1, 11), (0, 2))
INSTALL = 'pip install "nvidia-cutlass-dsl[cu13]>=4.8,<4.9" "apache-tvm-ffi>=0.1.11,<0.2"'


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: `4.8.1.post2` → (4, 8, 1)."""
    found = []
    for part in text.split("."):
        digits = part[:len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def _require(package: str, span: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    need = f">={'.'.join(map(str, span[0]))}, <{'.'.join(map(str, span[1]))}"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise BuildError(f"{package} is missing; needed: {need}", hint=INSTALL) from None
    if not span[0] <= numbers(found) < span[1]:
        raise BuildError(f"{package} {found} found; needed: {need}", hint=INSTALL)
    return found


def libraries() -> dict[str, str]:
    """The versions of the DSL's library packages."""
    named = ((d.metadata["Name"] or "", d.version) for d in distributions())
    return {n: v for n, v in sorted(named) if n.lower().replace("_", "-").startswith("nvidia-cutlass-dsl-libs")}


def check_toolchain() -> None:
    """Raises BuildError, with versions found and needed, where the DSL or tvm-ffi is missing, too old, too new, or mixed."""
    found = _require(DSL, DSL_RANGE)
    _require(FFI, FFI_RANGE)
    mixed = {n: v for n, v in libraries().items() if v != found}
    if mixed:
        listed = ", ".join(f"{n} {v}" for n, v in mixed.items())
        raise BuildError(f"{DSL} {found} found beside {listed}; needed: one version of all", hint=INSTALL)
