"""From what stands on the command line to functions: a path, a shipped recipe's name, `FILE:function`."""
from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import FusecError

if TYPE_CHECKING:
    from .api import Fused

RECIPES = Path(__file__).parent / "recipes"


def resolve(text: str) -> tuple[Path, str]:
    """(file, function or '') of `FILE` or `FILE:function`; a path that does not exist is looked up among the shipped recipes."""
    name, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier() or Path(text).exists():
        name, function = text, ""
    path = Path(name)
    if path.is_file():
        return path.absolute(), function
    shipped = RECIPES / f"{path.stem if path.suffix == '.py' else path.name}.py"
    if shipped.is_file() and path.suffix in ("", ".py") and path.stem != "__init__":
        return shipped, function
    known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.py") if p.stem != "__init__"))
    what = "a file, found a folder" if path.is_dir() else "a file or the name of a shipped recipe, found neither"
    raise FusecError(f"{name}: expected {what}", hint=f"shipped recipes: {known}")


def load(path: Path) -> ModuleType:
    """Import a file as a script's neighbours would see it. What the file itself raises comes through."""
    if path.parent == RECIPES:
        return importlib.import_module(f"fusec.recipes.{path.stem}")
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"fusec_user_{abs(hash(path.stem))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FusecError(f"{path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise FusecError(f"{error.filename}:{error.lineno}:{error.offset or 1}: {error.msg}") from error
    return module


def functions(text: str) -> list[Fused]:
    """The decorated functions of `FILE` in the order of their definition, or the one selected by `FILE:function`."""
    from .api import Fused
    path, wanted = resolve(text)
    module = load(path)
    found = list({id(v): v for v in vars(module).values() if isinstance(v, Fused)}.values())
    own = [f for f in found if f.reference.__module__ == module.__name__] or found
    if wanted:
        own = [f for f in found if f.name == wanted]
    if not own:
        names = ", ".join(f.name for f in found)
        plain = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise FusecError(f"{path.name}: expected {f'a function {wanted}' if wanted else 'a function'} decorated with @fusec.fuse, "
                         f"found {names or 'none'}",
                         hint="" if names else f"decorate {plain[-1] if plain else 'the step'} with @fusec.fuse(example=make)")
    return own
