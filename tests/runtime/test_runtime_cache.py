from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from litz.runtime.cache import Cache, content_key, default_root


def entry(cache: Cache, kind: str, key: str, suffix: str = "") -> Path:
    return cache.root / "v1" / kind / key[:2] / (key + suffix)


def test_put_and_get(cache: Cache) -> None:
    key = content_key("some", b"content")
    assert cache.get("graph", key) is None
    cache.put("graph", key, b"\x00\xffdata")
    assert cache.get("graph", key) == b"\x00\xffdata"
    assert cache.get("other", key) is None
    cache.put("graph", key, "text: \u00e4")
    assert Cache(cache.root).get_text("graph", key) == "text: \u00e4"


def test_the_key_keeps_parts_apart() -> None:
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("ab") == content_key(b"ab")
    assert len(content_key("x")) == 40


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-3] + b"zzz",
    ],
)
def test_a_damaged_entry_is_a_miss(cache: Cache, damage) -> None:
    key = content_key("x")
    path = cache.put("graph", key, b"payload" * 100, ".bin")
    assert path == entry(cache, "graph", key, ".bin")
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("graph", key, ".bin") is None
    assert cache.get_file("graph", key, ".bin") is None
    cache.put("graph", key, b"again", ".bin")
    assert cache.get("graph", key, ".bin") == b"again"


def test_put_file_moves_a_file_in(cache: Cache) -> None:
    folder = cache.scratch()
    made = folder / "made"
    made.write_bytes(b"shared object")
    path = cache.put_file("cpp", "abcd", made, ".so")
    assert path.read_bytes().startswith(b"shared object")
    assert cache.get_file("cpp", "abcd", ".so") == path
    assert not made.exists()


def test_nothing_is_left_of_a_write(cache: Cache) -> None:
    for i in range(5):
        cache.put("graph", content_key(str(i)), b"x")
    assert list((cache.root / "v1" / "tmp").iterdir()) == []


def test_a_root_that_cannot_be_written_is_read_and_warns_once(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    Cache(root).put("graph", "aa11", b"old")
    # A file where the folder for new entries should be: fails for any user, root too.
    (root / "v1" / "tmp").rmdir()
    (root / "v1" / "tmp").write_text("")
    cache = Cache(root)
    with pytest.warns(RuntimeWarning, match="LITZ_CACHE_DIR") as seen:
        cache.put("graph", "bb22", b"new")
        cache.put("graph", "cc33", b"newer")
        cache.scratch().rmdir()
    assert len(seen) == 1
    assert cache.get("graph", "aa11") == b"old"
    assert cache.get("graph", "bb22") == b"new"
    assert cache.get_file("graph", "cc33") is not None
    assert not entry(cache, "graph", "bb22").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_root(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o500)
    cache = Cache(root)
    with pytest.warns(RuntimeWarning):
        cache.put("graph", "aa", b"x")
    assert cache.get("graph", "aa") == b"x"


def test_no_space_left(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Cache._write

    def full(folder: Path, *args, **kwargs) -> Path:
        if folder == cache.root / "v1":
            raise OSError(28, "No space left on device")
        return real(folder, *args, **kwargs)

    monkeypatch.setattr(Cache, "_write", staticmethod(full))
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.put("graph", "aa", b"x")
    assert cache.get("graph", "aa") == b"x"


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "here"))
    assert default_root() == tmp_path / "here"
    assert Cache().root == tmp_path / "here"
    assert not (tmp_path / "here").exists()
    monkeypatch.delenv("LITZ_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg" / "litz"


def test_writers_and_readers_at_once(cache: Cache) -> None:
    """A reader sees one of the whole contents, never a mixture."""
    program = (
        "import sys; from litz.runtime.cache import Cache\n"
        "cache = Cache(sys.argv[1])\n"
        "for i in range(150):\n"
        "    cache.put('graph', 'k', sys.argv[2].encode() * 20000)\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(cache.root), letter])
        for letter in "ab"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        path = entry(cache, "graph", "k")
        present = path.exists()
        data = cache.get("graph", "k")
        assert data is not None or not present
        if data is not None:
            seen.add(data)
    assert all(writer.wait() == 0 for writer in writers)
    assert seen and seen <= {b"a" * 20000, b"b" * 20000}


def test_clear(cache: Cache) -> None:
    cache.put("graph", "aa", b"x")
    cache.clear()
    assert cache.get("graph", "aa") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("graph", "aa", b"y")
    assert cache.get("graph", "aa") == b"y"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_temporary_folder_lives_as_long_as_its_process(tmp_path: Path) -> None:
    program = """
import os, sys, warnings
from litz.runtime.cache import Cache
warnings.simplefilter("ignore")
cache = Cache(sys.argv[1])
path = cache.put("graph", "aa", b"x")
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert cache.get("graph", "aa") == b"x"
print(path)
"""
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = subprocess.run(
        [sys.executable, "-c", program, str(blocked)], capture_output=True, text=True, check=True
    )
    path = Path(done.stdout.strip())
    assert path.name == "aa" and not path.exists() and not path.parents[3].exists()
