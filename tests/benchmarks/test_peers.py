"""Peers: where they come from, and what is said of those that do not."""
from benchmarks import peers

FILE = """
from benchmarks.peers import Peer

def one():
    return Peer(lambda arguments, outputs: (lambda: outputs[0].fill_(arguments["x"])), "1.0", outputs=(0,))

def broken():
    raise OSError("no compiler")

PEERS = {"kda_decode": {"flashinfer": one, "broken": broken}, "mla_reduce": {"two": one}}
"""


def names(found):
    return [(p.function, p.name) for p in found]


def test_peers_come_from_a_file_by_function_and_name(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(FILE)
    found, left_out = peers.load(file, ["kda_decode", "mla_reduce", "swiglu"], ("flashinfer", "two", "broken", "absent"))
    assert names(found) == [("kda_decode", "flashinfer"), ("mla_reduce", "two")]
    assert left_out == ["broken: OSError: no compiler", "absent: not in theirs.py"]
    assert found[0].peer.version == "1.0" and found[0].peer.outputs == (0,)


def test_without_names_every_function_gets_its_default_peers(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(FILE)
    found, left_out = peers.load(file, ["kda_decode", "mla_reduce", "swiglu"])
    assert names(found) == [("kda_decode", "flashinfer")] and left_out == ["sglang-triton: not in theirs.py"]
    assert peers.load(file, ["swiglu"]) == ([], [])


def test_a_file_that_does_not_run_is_left_out(tmp_path):
    file = tmp_path / "theirs.py"
    for text, said in (("1 / 0", "ZeroDivisionError"), ("", "AttributeError")):
        file.write_text(text)
        found, left_out = peers.load(file, ["kda_decode"])
        assert found == [] and said in left_out[0]


def test_a_peer_that_is_not_installed_is_left_out():
    found, left_out = peers.load(None, ["kda_decode"], ("flashinfer", "other"))
    assert "other: no installed package is known by that name; --peers FILE loads others" in left_out
    assert len(found) + len(left_out) == 2
