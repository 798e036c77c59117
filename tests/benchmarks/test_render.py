"""Results as tables, several runs as one page, and what they are judged by."""
import copy
import json

import click
import pytest
from click.testing import CliRunner

from benchmarks import criteria, render


def row(function, sizes, rows, size, us, group="recurrences", tokens=None, state="", troubles=None):
    return {"function": function, "sizes": sizes, "state": state, "group": group, "rows": rows, "tokens": tokens or rows,
            "bytes": size, "sets": 2, "us": us, "troubles": troubles or {}}


MADE = {
    "device": {"name": "Some GPU", "driver": "1.2", "multiprocessors": 132, "memory": 1, "arch": "sm_90a"},
    "versions": {"fusec": "0", "torch": "1"}, "notes": ["a note"], "left_out": ["vllm: not there"], "groups": ["kda", "rows"],
    "seconds": 10.0,
    "kernels": [{"function": "kda_decode", "sizes": "H=12", "key": "k", "arch": "sm_90a", "threads": 256, "registers": 128,
                 "spills": 0, "smem_bytes": 2352, "variants": 1}],
    "rows": [
        row("kda_decode", "H=12", 1, 1_000_000, {"fusec": 4.0, "probe": 2.0, "peer": 8.0}, "kda", state="fp32"),
        row("kda_decode", "H=12", 4096, 4_000_000_000, {"fusec": 1000.0, "probe": 1000.0}, "kda", state="fp32",
            troubles={"peer": "not recorded"}),
        row("short_conv", "", 1, 3200, {"copy": 2.0}, "rows", troubles={"fusec": "output 0: 5 of 6 elements differ"}),
    ],
}
PARTS = "H=16 S=32 D=512 some splits"
V4 = "H=64 S=16 D=512 all splits"
MORE = {**MADE, "groups": ["splits", "rows"], "versions": {"fusec": "0", "torch": "2"}, "notes": [], "left_out": [], "seconds": 5.0,
        "kernels": [{**MADE["kernels"][0], "function": "short_conv", "sizes": ""}], "rows": [
            row("reduce_natural", PARTS, 8, 2_400_000, {"fusec": 4.0, "probe": 2.0, "sglang-triton": 5.0, "empty": 1.0}, "splits"),
            row("short_conv", "", 1, 3200, {"fusec": 1.0, "copy": 2.0}, "rows")]}


def test_the_tables_hold_the_numbers():
    text = render.markdown(MADE)
    lines = text.splitlines()
    assert "| kda_decode | H=12 | 1 | 1 MB | 4.00 | 0.25 | 2.00 | 2.00 | 8.00 | 0.50 |" in lines
    assert "| kda_decode | H=12 | 4,096 | 4 GB | 1000.0 | 4.00 | 1000.0 | 1.00 | – | – |" in lines
    assert "| short_conv | – | 1 | 3.2 KB | – | – | 2.00 | – |" in lines
    assert "| function | sizes | rows | moved | fusec µs | TB/s | probe µs | ÷ probe | peer µs | ÷ peer |" in lines
    assert "| function | sizes | rows | moved | fusec µs | TB/s | copy µs | ÷ copy |" in lines
    assert "| kda_decode | fp32 | probe | 2 | 1.414 |" in lines and "| kda_decode | fp32 | peer | 1 | 0.500 |" in lines
    assert "- a note" in lines and "- vllm: not there" in lines
    assert "- short_conv  rows=1: fusec: output 0: 5 of 6 elements differ" in lines
    assert lines.index("## Kimi Delta Attention") < lines.index("## Functions of rows") < lines.index("## Geometric means")


def test_an_empty_kernel_has_a_time_and_no_ratio():
    lines = render.markdown(MORE).splitlines()
    assert ("| function | sizes | rows | moved | fusec µs | TB/s | probe µs | ÷ probe | sglang-triton µs | ÷ sglang-triton "
            "| empty µs |") in lines
    assert f"| reduce_natural | {PARTS} | 8 | 2.4 MB | 4.00 | 0.60 | 2.00 | 2.00 | 5.00 | 0.80 | 1.00 |" in lines
    assert not any("| empty |" in line for line in lines)


def test_the_terminal_shows_the_same(capsys):
    render.show(MADE)
    out = capsys.readouterr().out
    assert "Some GPU" in out and "4,096" in out and "kda_decode fp32 ÷ probe: geometric mean 1.414 over 2" in out
    render.show(MORE)
    out = capsys.readouterr().out
    assert f"reduce_natural {PARTS}: 1.00 µs beyond empty + probe at 8 tokens (needs 1.50 µs): yes" in out
    assert "2 of 2 criteria are met" in out


def test_rendering_a_file(tmp_path):
    source, target = tmp_path / "results.json", tmp_path / "gpu.md"
    source.write_text(json.dumps(MADE))
    assert CliRunner().invoke(render.main, [str(source), "-o", str(target)]).exit_code == 0
    assert target.read_text() == render.markdown(MADE)


def test_several_runs_become_one_page_and_the_later_counts(tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, data in zip(files, (MADE, MORE)):
        file.write_text(json.dumps(data))
    done = CliRunner().invoke(render.main, [*map(str, files)])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert "- fusec 0, torch 1 / 2" in lines and "- a note" in lines
    assert "- Measured in 2 runs, the later of which counts where two measured the same: kda, rows; splits, rows" in lines
    assert "| short_conv | – | 1 | 3.2 KB | 1.00 | 0.00 | 2.00 | 0.50 |" in lines
    assert sum(line.startswith("| short_conv | – | 1 |") for line in lines) == 1
    assert [line for line in lines if line.startswith("## ")] == [
        "## Kimi Delta Attention", "## Functions of rows", "## Split-KV reductions", "## Criteria", "## Geometric means",
        "## Kernels", "## Not measured"]
    assert "- kda_decode H=12 rows=4096: peer: not recorded" in lines
    assert not any("5 of 6 elements differ" in line for line in lines)
    merged = render.merged([MADE, MORE])
    assert [k["function"] for k in merged["kernels"]] == ["kda_decode", "short_conv"] and merged["seconds"] == 15.0


def test_runs_of_two_machines_do_not_become_one_page():
    other = copy.deepcopy(MORE)
    other["device"]["driver"] = "1.3"
    with pytest.raises(click.ClickException, match="driver 1.2.*driver 1.3"):
        render.merged([MADE, other])


@pytest.mark.parametrize("given, said", [
    (row("gdn_decode", "state=fp32", 256, 51_000_000, {"fusec": 10.0, "probe": 9.3}),
     ["gdn_decode state=fp32: 0.930 of the probe at 256 rows (needs 0.88): yes"]),
    (row("gdn_decode", "state=fp32", 256, 51_000_000, {"fusec": 10.0, "probe": 8.7}),
     ["gdn_decode state=fp32: 0.870 of the probe at 256 rows (needs 0.88): no"]),
    (row("gdn_decode", "state=fp32", 8, 50_000_000, {"fusec": 10.0, "probe": 1.0}), []),
    (row("gdn_decode", "", 256, 51_000_000, {"probe": 8.7}),
     ["gdn_decode: not measured, of the probe at 256 rows (needs 0.88): no"]),
    (row("swiglu", "", 1, 51_000_000, {"fusec": 10.0, "copy": 9.0}, "rows"),
     ["swiglu: 0.900 of the copy at 1 row (needs 0.90): yes"]),
    (row("reduce_natural", PARTS, 512, 31_000_000,
         {"fusec": 10.0, "probe": 9.5, "sglang-triton": 9.9, "torch.compile": 30.0}, "splits"),
     [f"reduce_natural {PARTS}: 0.950 of the probe at 512 tokens (needs 0.90): yes",
      f"reduce_natural {PARTS}: 0.990 of sglang-triton at 512 tokens (needs 1.00): no",
      f"reduce_natural {PARTS}: 3.000 of torch.compile at 512 tokens (needs 1.00): yes"]),
    (row("reduce_natural", PARTS, 1, 300_000, {"fusec": 4.6, "probe": 2.0, "empty": 1.0}, "splits"),
     [f"reduce_natural {PARTS}: 1.60 µs beyond empty + probe at 1 token (needs 1.50 µs): no"]),
    (row("kda_decode", "H=12", 256, 10 ** 9, {"fusec": 10.0, "probe": 5.0}, "kda"), []),
])
def test_each_row_is_judged_by_what_is_asked_of_it(given, said):
    assert list(map(str, criteria.verdicts([given]))) == said


@pytest.mark.parametrize("mine, said", [(10.9, "1.090"), (11.1, "1.110")])
def test_the_fused_epilogue_is_judged_beside_the_plain_reduction(mine, said):
    rows = [row("reduce_natural", V4, 128, 20_000_000, {"fusec": 10.0}, "splits"),
            row("reduce_natural", V4.replace("all", "some"), 128, 20_000_000, {"fusec": 1.0}, "splits"),
            row("reduce_unrotate_quant", V4, 64, 20_000_000, {"fusec": mine}, "splits", tokens=128)]
    needs = f"times reduce_natural at 128 tokens (needs at most 1.10): {'yes' if mine < 11 else 'no'}"
    assert [str(v) for v in criteria.verdicts(rows)] == [f"reduce_unrotate_quant {V4}: {said} {needs}"]
    assert criteria.verdicts(rows[1:]) == []
