"""The README shows the kernel that its own example becomes."""
import importlib.util
import pathlib

from fusec.api import capture_graph
from fusec.passes import pipeline

README = pathlib.Path(__file__).parents[2] / "README.md"


def blocks(text):
    """(start, end) of the contents of each Python block."""
    found, at = [], 0
    while (at := text.find("```python\n", at)) >= 0:
        at += len("```python\n")
        found.append((at, text.index("\n```", at)))
    return found


def test_the_readme_shows_the_kernel_of_its_example(tmp_path, update_golden):
    text = README.read_text()
    example, shown = blocks(text)[:2]
    path = tmp_path / "example.py"
    path.write_text(text[slice(*example)])
    spec = importlib.util.spec_from_file_location("readme_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stages = capture_graph(module.gated_norm.reference, module.gated_norm.inputs())
    source = pipeline.compile(stages.for_arch("sm_90a"), "sm_90a").need("source")
    kernel = source[source.index("@cute.kernel"):source.index("\n\n\n@cute.jit\ndef launch")]
    if update_golden:
        README.write_text(text[:shown[0]] + kernel + text[shown[1]:])
    else:
        assert text[slice(*shown)] == kernel, "pytest --update-golden tests/cli/test_readme.py writes the README's kernel anew"
