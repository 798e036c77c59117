"""Imports point one way, and heavy libraries stay where they belong: read from the files, nothing is imported."""
import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "fusec"
FILES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py"))
PARTS = {  # part: what of fusec it may import
    "ir": {"errors", "ir"},
    "target.py": {"errors"},
    "errors.py": set(),
    "passes": {"errors", "target", "ir", "passes"},
    "codegen": {"errors", "target", "ir", "codegen"},
    "capture": {"errors", "ir", "capture"},
    "recipes": {"", "recipes"},
}
DRIVER = "passes/pipeline.py"  # Its last pass prints.
LIBRARIES = {
    "torch": ("capture/", "runtime/", "checker/", "emulate/", "recipes/", "api.py", "ir/reference.py", "ir/interpret",
              "ir/memory_model.py"),
    "jinja2": ("codegen/render.py",),
    "cutlass": ("codegen/build.py", "codegen/load.py", "codegen/device/", "emulate/"),
    "networkx": ("ir/", "passes/", "capture/"),
    "rich": ("cli",),
    "click": ("cli",),
}


def imports(file):
    """(part of fusec, or '' , top-level library or '') of each import statement of a file."""
    package = file.split("/")[:-1]
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            for a in node.names:
                top, _, rest = a.name.partition(".")
                yield (rest.split(".")[0], "") if top == "fusec" else (None, top)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[:len(package) - node.level + 1]
            names = [*base, *(node.module or "").split(".")] if node.module else base
            for name in [names[0]] if names and names[0] else [a.name for a in node.names]:
                yield name, ""
        elif isinstance(node, ast.ImportFrom):
            top, _, rest = node.module.partition(".")
            yield (rest.split(".")[0], "") if top == "fusec" else (None, top)


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_its_layer_may(file):
    allowed = PARTS.get(file.split("/")[0])
    for part, library in imports(file):
        if allowed is not None and part is not None:
            assert part in allowed or file == DRIVER and part == "codegen", f"{file} imports fusec.{part}"
        if library in LIBRARIES:
            assert file.startswith(LIBRARIES[library]), f"{file} imports {library}"


def test_no_model_is_known_below_the_recipes():
    words = ("kda", "gdn", "mamba", "kimi", "deepseek", "mla", "rwkv", "qwen", "flashinfer")
    for file in FILES:
        if file.startswith(("ir/", "passes/", "codegen/", "capture/")):
            fields = ("id", "name", "attr", "value")
            names = {n.lower() for node in ast.walk(ast.parse((ROOT / file).read_text()))
                     for n in (getattr(node, f, "") for f in fields) if isinstance(n, str)}
            for word in words:
                assert not any(word in n.replace("_", " ").split() for n in names), f"{file} knows {word}"
