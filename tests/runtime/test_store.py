"""Entries are whole or absent."""
import os
import subprocess
import sys
import threading

import pytest

from fusec.runtime import store as module
from fusec.runtime.store import Store

KEY = "ab" + 30 * "0"


@pytest.fixture
def full(tmp_path):
    store = Store(tmp_path / "a b" / "ü 核")
    store.publish(KEY, {"kernel.o": b"object", "source.py": b"text"}, {"function": "f", "sizes": [1, 2]})
    return store


def test_an_entry_comes_back(full):
    entry = full.find(KEY)
    assert entry.meta == {"function": "f", "sizes": [1, 2]} and entry.file("kernel.o").read_bytes() == b"object"
    assert full.find("cd" + 30 * "0") is None


@pytest.mark.parametrize("name", ["kernel.o", "source.py", "entry.json"])
@pytest.mark.parametrize("damage", ["empty", "half", "flip", "gone"])
def test_a_damaged_entry_is_a_miss_with_one_warning_and_is_replaced(full, name, damage, caplog, monkeypatch):
    monkeypatch.setattr("fusec.log._said", set())
    file = full.find(KEY).file(name)
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "half": data[:len(data) // 2], "flip": bytes([data[0] ^ 1]) + data[1:]}[damage])
    assert full.find(KEY) is None and full.find(KEY) is None
    assert caplog.text.count("entry is damaged") == 1
    full.publish(KEY, {"kernel.o": b"again"}, {})
    assert full.find(KEY).file("kernel.o").read_bytes() == b"again"


def test_the_second_of_two_writers_leaves_the_first_entry_and_no_litter(full):
    full.publish(KEY, {"kernel.o": b"second"}, {})
    assert full.find(KEY).file("kernel.o").read_bytes() == b"object"
    assert os.listdir(full.root / KEY[:2]) == [KEY]


def test_a_store_that_cannot_be_written_falls_back_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fusec.log._said", set())
    (tmp_path / "file").write_text("")
    entry = Store(tmp_path / "file").publish(KEY, {"kernel.o": b"x"}, {})
    assert entry.path.parent.parent.stat().st_mode & 0o777 == 0o700 and "cannot be written" in caplog.text
    assert module.private_store().find(KEY).file("kernel.o").read_bytes() == b"x"


def test_the_override_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "mine"))
    assert module.store().root == tmp_path / "mine"


def test_a_lock_that_is_never_released_is_given_up_on_with_its_holder_named(full, monkeypatch, caplog):
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.2)
    with full.lock(KEY):
        done = []
        thread = threading.Thread(target=lambda: [done.append(1) for _ in [full.lock(KEY).__enter__()]])
        thread.start()
        thread.join(10)
    assert done and f"by process {os.getpid()}; compiling without it" in caplog.text


def test_processes_that_publish_at_once_leave_one_whole_entry(tmp_path):
    code = ("import sys, pathlib; from fusec.runtime.store import Store\n"
            f"for n in range(20): Store(pathlib.Path({str(tmp_path)!r})).publish('ab%030d' % n, {{'kernel.o': bytes(1000)}}, {{}})")
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [p.wait(120) for p in running] == [0] * 4
    entries = sorted(p.name for p in (tmp_path / "ab").iterdir())
    assert entries == [f"ab{n:030d}" for n in range(20)]
    assert all(Store(tmp_path).find(e) is not None for e in entries)


def test_a_lock_is_held_and_released(full):
    with full.lock(KEY):
        pass
    with full.lock(KEY):
        assert (full.root / "locks" / f"{KEY}.pid").read_text() == str(os.getpid())
