"""`import fusec` is light, and the README and CI run the same commands."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_import_loads_neither_torch_nor_the_dsl():
    code = "import sys, fusec; print([m for m in ('torch', 'cutlass', 'sympy', 'click', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_ci_runs_the_test_command_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    command = readme.split("## Tests\n\n```\n")[1].split("\n```")[0]
    assert f"\n{command}\n" in (ROOT / ".ci/run").read_text()


def test_public_names_resolve():
    import fusec
    assert {n for n in fusec.__all__ if getattr(fusec, n, None) is None} == set()
