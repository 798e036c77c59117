"""The command line: fusec compile | inspect | explain | check | receipts.

A user's error prints its message and exits with 2, without a traceback unless `--traceback` asks for one. What takes long shows
what it is doing on standard error, where that is a terminal.
"""
from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from . import __version__
from .errors import FusecError, InternalError
from .options import EXAMPLE_ROWS, NUMERICS, Progress, SizeValue, archs, combinations, sizes
from .target import DEFAULT, TARGETS

if TYPE_CHECKING:
    from .api import Fused
    from .passes.pipeline import Stages
    from .runtime.artifact import Artifact

STAGES = ("graph", "axes", "regions", "schedule", "kernel", "smem", "source", "ptx", "resources")
ARCHS = ",".join(DEFAULT)


def main() -> NoReturn:
    """The entry point. Leaves without teardown: nothing is left to write once the streams are flushed."""
    gc.set_threshold(2_000_000, 50, 50)  # Imports and capture make objects by the million that live to the end.
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
def working() -> Iterator[Progress]:
    """A function that shows what is being done now, on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(text)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A function of the file, with the rows and sizes of its example. varying: those sizes that were given several values."""

    fused: Fused
    rows: int
    sizes: dict[str, SizeValue]
    varying: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function, and which of several sizes."""
        return " ".join([self.fused.name, *(f"{n}={self.sizes[n]}" for n in self.varying)])

    def compile(self, wanted: tuple[str, ...], progress: Progress, variants: tuple[Any, ...] = ()) -> Artifact:
        return self.fused.compile(wanted, self.rows, progress=progress, variants=variants, **self.sizes)

    def inputs(self) -> dict[str, Any]:
        return self.fused.inputs(self.rows, **self.sizes)

    def plan(self, arch: str, until: str, progress: Progress) -> Stages:
        """The levels of the function up to `until`, without a build."""
        from .api import capture_graph
        from .passes import pipeline
        progress(f"{self.name}: capturing")
        example, dynamic_shapes = self.fused.capture_inputs(self.rows, **self.sizes)
        captured = capture_graph(self.fused.reference, example, dynamic_shapes, self.fused.numerics)
        progress(f"{self.name}: planning for {arch}")
        return pipeline.compile(captured.for_arch(arch), arch, until=until)


@dataclass(frozen=True, slots=True)
class Request:
    """What all commands are told: a file, and the sizes of its examples."""

    file: str
    rows: int
    sizes: dict[str, tuple[SizeValue, ...]]
    strict_numerics: bool
    traceback: bool

    def functions(self, progress: Progress, builds: bool = False) -> list[Chosen]:
        """The functions of the file; the builder is started first, so that the DSL loads beside torch.

        A size goes to the functions whose examples know it, and every combination of several values is a choice of its own. Raises
        FusecError for a size that none of them knows.
        """
        from .cli_load import functions, resolve
        resolve(self.file)
        if builds:
            from .runtime.worker import start_builder
            start_builder()
        progress(f"loading {self.file}")
        found = functions(self.file)
        known = {f.name: f.sizes() for f in found}
        strange = [n for n in self.sizes if not any(n in k or "**" in k for k in known.values())]
        if strange:
            said = "; ".join(f"{name}: {', '.join(k) or 'none'}" for name, k in known.items())
            raise FusecError(f"-D {strange[0]}: the example's sizes are {said}")
        for fused in found if self.strict_numerics else ():
            fused.numerics = NUMERICS[1]
        return [chosen for f in found for chosen in self._combinations(f, known[f.name])]

    def _combinations(self, fused: Fused, known: tuple[str, ...]) -> list[Chosen]:
        own = {n: v for n, v in self.sizes.items() if n in known or "**" in known}
        varying = tuple(n for n, v in own.items() if len(v) > 1)
        declares = fused.example is None and fused.has_example
        return [Chosen(fused.bound(**each) if declares else fused, self.rows, each, varying) for each in combinations(own)]


def command(name: str, *, arch: str | None = ARCHS) -> Callable[[Callable[..., Any]], click.Command]:
    """A command on a FILE, with the options that all of them have; its function gets them as a Request."""
    def decorate(fn: Callable[..., Any]) -> click.Command:
        @functools.wraps(fn)
        def run(file: str, rows: int, defines: tuple[str, ...], strict_numerics: bool, traceback: bool, **own: Any) -> Any:
            return fn(Request(file, rows, sizes(defines), strict_numerics, traceback), **own)

        made: Any = click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")(run)
        made = click.option("--strict-numerics", is_flag=True, help="No contraction, no folding, no approximation.")(made)
        made = click.option("-D", "defines", multiple=True, metavar="NAME=VALUE[,VALUE]",
                            help="A size of the example inputs; of several values every combination is taken.")(made)
        made = click.option("--rows", default=EXAMPLE_ROWS, show_default=True, type=click.IntRange(2),
                            help="Rows of the example inputs.")(made)
        if arch is not None:
            made = click.option("--arch", default=arch, show_default=True, metavar="ARCH[,ARCH]",
                                help=f"Architectures, of {', '.join(TARGETS)}.")(made)
        return commands.command(name)(click.argument("file")(made))
    return decorate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fusec")
def commands() -> None:
    """A plain PyTorch decode step becomes one readable CuTe-DSL kernel.

    FILE is a path or the name of a shipped recipe; FILE:function selects one of its functions.
    """


@command("compile")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--variant", "variants", multiple=True, metavar="unaligned|NAME=BYTES[,…]",
              help="Also kernels for arguments that are less aligned.")
def compile_(request: Request, arch: str, as_json: bool, variants: tuple[str, ...]) -> int:
    """Compile every function of FILE and print what became of it."""
    from .runtime.variants import parse
    wanted, asked = archs(arch), tuple(map(parse, variants))
    found, remarks, refused = [], [], list[tuple[str, FusecError]]()
    with working() as progress, contextlib.redirect_stdout(sys.stderr):  # What a user's file prints is no part of the table.
        every = request.functions(progress, builds=True)
        ready = [f for f in every if f.fused.has_example or len(every) == 1]
        remarks += [f"{f.name}: left out, it has no example inputs" for f in every if f not in ready]
        for chosen in ready:
            try:
                artifact = chosen.compile(wanted, progress, asked)
            except FusecError as error:
                if len(ready) == 1 and not as_json:
                    raise
                refused.append((chosen.name, error))
                remarks.append(f"{chosen.name}: refused: {error.message}")
                continue
            from .cli_report import notes, row
            found += [row(kernel, artifact, chosen.name, chosen.sizes) for kernel in artifact.kernels]
            remarks += notes(artifact)
    from .cli_report import as_json as to_json
    from .cli_report import print_table
    remarks = list(dict.fromkeys(remarks))
    if as_json:
        click.echo(to_json(found, remarks, refused))
    else:
        print_table(found, remarks)
    for _, refusal in refused:
        show_error(refusal, request.traceback)
    return 2 if refused else 0


@command("inspect", arch=DEFAULT[0])
@click.option("--stage", type=click.Choice(STAGES), help="One stage; without it all that need no build.")
def inspect(request: Request, stage: str | None, arch: str) -> None:
    """Print the functions of FILE at one stage of their compilation."""
    from .cli_stages import NEEDS, built_text, stage_text
    shown = [stage] if stage else [s for s in STAGES if s in NEEDS]
    built = stage is not None and stage not in NEEDS
    with working() as progress:
        for chosen in request.functions(progress, builds=built):
            for name in archs(arch):
                if built:
                    texts = [built_text(k, shown[0]) for k in chosen.compile((name,), progress).kernels]
                else:
                    stages = chosen.plan(name, NEEDS[shown[-1]], progress)
                    head = "# ---- {} of " + f"{chosen.name}, {name}\n" if len(shown) > 1 else ""
                    texts = [head.format(s) + stage_text(stages, s) for s in shown]
                for text in texts:
                    click.echo(text.rstrip("\n") + "\n" * (1 + (len(shown) > 1)), nl=False)


@command("explain", arch=DEFAULT[0])
def explain(request: Request, arch: str) -> int:
    """Say why the functions of FILE became the kernels they are, or why they cannot be: every one of them, exit code 2 at the end
    where one cannot."""
    from .cli_report import ops_fused
    from .cli_stages import explain as text
    refused = False
    with working() as progress:
        for chosen in request.functions(progress):
            for name in archs(arch):
                try:
                    stages = chosen.plan(name, "kernel", progress)
                except FusecError as error:
                    refused = True
                    click.echo(f"{chosen.name}: no kernel for {name}")
                    show_error(error, request.traceback)
                    continue
                head = f"{chosen.name}\n" if chosen.varying else ""
                click.echo(head + text(stages, ops_fused(stages.need("captured"))), nl=False)
    return 2 if refused else 0


@command("check", arch=None)
@click.option("--level", type=click.Choice(("graph", "kernel", "emulate", "gpu")),
              help="Interpret the graph (the default), interpret the kernel, run the emitted file on the CPU, or on the GPU. With"
                   " --inputs or --until: the last level to look at (by default all that this machine has).")
@click.option("--arch", metavar="ARCH", help="The architecture of the kernel that is interpreted.")
@click.option("--cases", is_flag=True, help="Also other numbers of rows, unaligned rows, other pools and slots.")
@click.option("--inputs", "dump", metavar="FILE",
              help="Saved arguments (torch.save, fusec.dump_inputs): name the first value of that call that differs, by level.")
@click.option("--until", metavar="VALUE", help="Print one value at every level: its name, or function+line.")
@click.option("--receipt", is_flag=True, help="With --level gpu: keep what was found as a file.")
@click.option("--receipts", "folder", metavar="FOLDER", help="Where receipts are kept.")
def check(request: Request, **options: Any) -> int:
    """Compare the functions of FILE with what they compute in exact arithmetic, on their example inputs or on saved ones."""
    from .cli_check import run_check
    with working() as progress:
        return run_check(request, progress, **options)


@commands.command("receipts")
@click.argument("files", nargs=-1, metavar="[FILE]…")
@click.option("--arch", default=ARCHS, show_default=True, metavar="ARCH[,ARCH]",
              help=f"Architectures, of {', '.join(TARGETS)}.")
@click.option("--receipts", "folder", metavar="FOLDER", help="Where receipts are kept.")
@click.option("--strict", is_flag=True, help="Exit with 1 where a receipt is missing.")
def receipts(files: tuple[str, ...], arch: str, folder: str | None, strict: bool) -> int:
    """List which emitted sources of FILE (by default: the shipped recipes) have a receipt of their identity."""
    from .cli_check import list_receipts
    with working() as progress:
        return list_receipts(files, archs(arch), folder, strict, progress)
