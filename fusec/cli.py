"""The command line: fusec compile | inspect | explain | check.

A user's error prints its message and exits with 2, without a traceback unless `--traceback` asks for one. What takes long shows
what it is doing on standard error, where that is a terminal.
"""
from __future__ import annotations

import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from . import __version__
from .errors import FusecError, InternalError
from .options import EXAMPLE_ROWS, NUMERICS, archs, sizes
from .target import DEFAULT

if TYPE_CHECKING:
    from .api import Fused

STAGES = ("graph", "axes", "regions", "schedule", "kernel", "smem", "source", "ptx", "resources")
ARCHS = ",".join(DEFAULT)


def main() -> NoReturn:
    """The entry point. Leaves without teardown: nothing is left to write once the streams are flushed."""
    gc.set_threshold(100_000, 50, 50)  # Capture makes hundreds of thousands of objects that live to the end.
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    from .runtime.worker import builder
    builder.close()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run a command line; its exit code: 0, 1 where a check fails or we do, 2 for a user's error."""
    show = "--traceback" in arguments
    try:
        return int(commands(arguments, prog_name="fusec", standalone_mode=False) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # Whoever read the output has gone.
        return 0
    except FusecError as error:
        show_error(error, show)
        return 2
    except InternalError as error:
        click.echo(f"{error}\nThis is a bug of fusec's, not of the function's.", err=True)
        if show:
            traceback.print_exc()
        return 1
    except Exception as error:  # The user's file may raise anything while it is imported or makes its example.
        if show:
            traceback.print_exc()
        else:
            click.echo(f"{_where(error)}{type(error).__name__}: {error}\nhint: --traceback shows how it came to this", err=True)
        return 2 if _is_users(error) else 1


def show_error(error: FusecError, with_traceback: bool) -> None:
    """The message of a user's error on standard error, with the traceback where it is asked for."""
    if with_traceback:
        traceback.print_exception(error)
    else:
        click.echo(f"{type(error).__name__}: {error}", err=True)


def _is_users(error: BaseException) -> bool:
    """Whether the innermost frame is in a file that is not ours, below the import of a user's file or the making of an example."""
    frames = [f.f_code.co_filename for f, _ in traceback.walk_tb(error.__traceback__)]
    here = os.path.dirname(__file__)
    recipes = os.path.join(here, "recipes")
    return any(not f.startswith(here) or f.startswith(recipes) for f in frames if os.path.isabs(f) and "site-packages" not in f
               and not f.startswith(sys.prefix) and not f.startswith(sys.base_prefix))


def _where(error: BaseException) -> str:
    frames = [(f.f_code.co_filename, n) for f, n in traceback.walk_tb(error.__traceback__)]
    here = os.path.dirname(__file__)
    own = [(f, n) for f, n in frames if not f.startswith((here, sys.prefix, sys.base_prefix)) and "site-packages" not in f
           and os.path.isabs(f)]
    return f"{own[-1][0]}:{own[-1][1]}: " if own else ""


@contextlib.contextmanager
def working(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done now, on standard error where that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(text)


def command(name: str, *, arch: str | None = ARCHS, example: bool = True) -> Callable[[Callable[..., Any]], click.Command]:
    """A command on a FILE with the options that all of them have."""
    def decorate(fn: Callable[..., Any]) -> click.Command:
        made: Any = click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")(fn)
        made = click.option("--strict-numerics", is_flag=True, help="No contraction, no folding, no approximation.")(made)
        if example:
            made = click.option("-D", "defines", multiple=True, metavar="NAME=VALUE", help="A size of the example inputs.")(made)
            made = click.option("--rows", default=EXAMPLE_ROWS, show_default=True, type=click.IntRange(2),
                                help="Rows of the example inputs.")(made)
        if arch is not None:
            made = click.option("--arch", default=arch, show_default=True, metavar="ARCH[,ARCH]", help="Architectures.")(made)
        return commands.command(name)(click.argument("file")(made))
    return decorate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fusec")
def commands() -> None:
    """A plain PyTorch decode step becomes one readable CuTe-DSL kernel.

    FILE is a path or the name of a shipped recipe; FILE:function selects one of its functions.
    """


def _functions(file: str, progress: Callable[[str], None], builds: bool, strict_numerics: bool) -> list[Fused]:
    """The functions of a file; the builder is started first, so that the DSL loads beside torch."""
    from .cli_load import functions, resolve
    resolve(file)
    if builds:
        from .runtime.worker import start_builder
        start_builder()
    progress(f"loading {file}")
    found = functions(file)
    for fused in found if strict_numerics else ():
        fused.numerics = NUMERICS[1]
    return found


@command("compile")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compile_(file: str, arch: str, as_json: bool, defines: tuple[str, ...], rows: int, strict_numerics: bool,
             traceback: bool) -> int:
    """Compile every function of FILE and print what became of it."""
    wanted, given = archs(arch), dict[str, Any](sizes(defines))
    found, remarks, refused = [], [], list[FusecError]()
    with working() as progress:
        every = _functions(file, progress, builds=True, strict_numerics=strict_numerics)
        ready = [f for f in every if f.example is not None or len(every) == 1]
        remarks += [f"{f.name}: left out, it has no example inputs" for f in every if f not in ready]
        for fused in ready:
            try:
                artifact = fused.compile(wanted, rows, progress=progress, **given)
            except FusecError as error:
                if len(ready) == 1:
                    raise
                refused.append(error)
                remarks.append(f"{fused.name}: refused: {error.message}")
                continue
            from .cli_report import notes, row
            found += [row(kernel, artifact) for kernel in artifact.kernels]
            remarks += notes(artifact)
    from .cli_report import as_json as to_json
    from .cli_report import print_table
    remarks = list(dict.fromkeys(remarks))
    if as_json:
        click.echo(to_json(found, remarks))
    else:
        print_table(found, remarks)
    for refusal in refused:
        show_error(refusal, traceback)
    return 2 if refused else 0


@command("inspect", arch=DEFAULT[0])
@click.option("--stage", type=click.Choice(STAGES), help="One stage; without it all that need no build.")
def inspect(file: str, stage: str | None, arch: str, defines: tuple[str, ...], rows: int, strict_numerics: bool,
            traceback: bool) -> None:
    """Print a function of FILE at one stage of its compilation."""
    from .cli_stages import NEEDS, built_text, stage_text
    given = dict[str, Any](sizes(defines))
    shown = [stage] if stage else [s for s in STAGES if s in NEEDS]
    with working() as progress:
        for fused in _functions(file, progress, builds=stage in ("ptx", "resources"),
                                strict_numerics=strict_numerics):
            for name in archs(arch):
                if stage in ("ptx", "resources"):
                    artifact = fused.compile((name,), rows, progress=progress, **given)
                    texts = [built_text(k, stage) for k in artifact.kernels]
                else:
                    stages = _plan(fused, name, rows, given, NEEDS[shown[-1]], progress)
                    head = "# ---- {} of " + f"{fused.name}, {name}\n" if len(shown) > 1 else ""
                    texts = [head.format(s) + stage_text(stages, s) for s in shown]
                for text in texts:
                    click.echo(text.rstrip("\n") + "\n" * (1 + (len(shown) > 1)), nl=False)


def _plan(fused: Fused, arch: str, rows: int, given: dict[str, Any], until: str,
          progress: Callable[[str], None]) -> Any:
    from .api import capture_graph
    from .passes import pipeline
    progress(f"{fused.name}: capturing")
    captured = capture_graph(fused.reference, fused.inputs(rows, **given), fused.dynamic_shapes, fused.numerics)
    progress(f"{fused.name}: planning for {arch}")
    return pipeline.compile(captured.for_arch(arch), arch, until=until)


@command("explain", arch=DEFAULT[0])
def explain(file: str, arch: str, defines: tuple[str, ...], rows: int, strict_numerics: bool, traceback: bool) -> None:
    """Say why a function of FILE became the kernel it is, or why it cannot be one."""
    from .cli_report import ops_fused
    from .cli_stages import explain as text
    with working() as progress:
        for fused in _functions(file, progress, builds=False, strict_numerics=strict_numerics):
            for name in archs(arch):
                stages = _plan(fused, name, rows, sizes(defines), "kernel", progress)
                click.echo(text(stages, ops_fused(stages.need("captured"))), nl=False)


@command("check", arch=None)
@click.option("--level", type=click.Choice(("graph", "kernel", "gpu")), default="graph", show_default=True,
              help="Interpret the graph, interpret the kernel, or run it.")
@click.option("--arch", metavar="ARCH", help="The architecture of the kernel that is interpreted.")
@click.option("--cases", is_flag=True, help="Also other numbers of rows, unaligned rows, other pools and slots.")
def check(file: str, level: str, arch: str | None, cases: bool, defines: tuple[str, ...], rows: int, strict_numerics: bool,
          traceback: bool) -> int:
    """Compare the functions of FILE with what they compute in exact arithmetic, on their example inputs."""
    from .checker import check as compare
    from .checker import check_file_cases
    given, name = sizes(defines), archs(arch)[0] if arch else None
    reports = []
    with working() as progress:
        for fused in _functions(file, progress, builds=level == "gpu", strict_numerics=strict_numerics):
            progress(f"{fused.name}: checking at level {level}")
            if cases:
                reports += check_file_cases(fused, level, arch=name, sizes=given)
            else:
                reports.append(compare(fused, fused.inputs(rows, **given), level=level, arch=name))
    for report in reports:
        click.echo(str(report))
    return 0 if all(r.ok for r in reports) else 1
