from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from litz.errors import ToolchainError
from litz.runtime import cache as module
from litz.runtime.cache import Cache, content_key, default_root
from litz.runtime.eviction import GRACE, keep_within


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
    real = module._write

    def full(folder: Path, *args, **kwargs) -> Path:
        if folder == cache.root / "v1":
            raise OSError(28, "No space left on device")
        return real(folder, *args, **kwargs)

    monkeypatch.setattr(module, "_write", full)
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


# --- faults ---


def test_no_room_anywhere(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args, **kwargs) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", full)
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(ToolchainError, match="neither.*No space left.*LITZ_CACHE_DIR"),
    ):
        cache.put("graph", "aa", b"x")


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home folder and without an entry among the system's users."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("LITZ_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", home)
    assert default_root() is None
    with pytest.warns(RuntimeWarning, match="no home folder.*LITZ_CACHE_DIR"):
        cache = Cache()
    cache.put("graph", "aa", b"x")
    assert cache.get("graph", "aa") == b"x"
    folder = cache.root
    del cache
    assert not folder.exists()


def test_a_folder_that_goes_is_made_again(cache: Cache) -> None:
    cache.put("graph", "aa", b"x")
    shutil.rmtree(cache.root)
    assert cache.get("graph", "aa") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("graph", "aa", b"y")
        cache.scratch()
    assert cache.get("graph", "aa") == b"y"


def test_a_folder_that_goes_during_a_write(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.os.replace
    lost = []

    def replace(source: str, target: Path) -> None:
        if not lost:
            lost.append(target)
            shutil.rmtree(cache.root)
        real(source, target)

    monkeypatch.setattr(module.os, "replace", replace)
    cache.put("graph", "aa", b"x")
    assert lost and cache.get("graph", "aa") == b"x"


def test_a_relative_root_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache("here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cache.put("graph", "aa", b"x").is_relative_to(tmp_path / "here")


# --- eviction ---


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    paths = [cache.put("cpp", content_key(str(i)), b"x" * 1000, ".so") for i in range(10)]
    for i, path in enumerate(paths):
        age(path, GRACE + 1000 - i)
    # A hit makes the oldest the youngest.
    assert cache.get_file("cpp", content_key("0"), ".so") == paths[0]
    size = paths[0].stat().st_size
    left = keep_within(tmp_path / "v1", 5 * size)
    assert left == 4 * size
    assert [p.exists() for p in paths] == [True] + [False] * 6 + [True] * 3


def test_what_was_used_lately_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path = cache.put("cpp", "aa", b"x" * 1000)
    assert keep_within(tmp_path / "v1", 10) >= 1000
    assert path.exists()


def test_reading_an_entry_is_use(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path = cache.put("graph", "aa", b"x" * 1000)
    age(path, 10 * GRACE)
    assert cache.get("graph", "aa") is not None
    keep_within(tmp_path / "v1", 10)
    assert path.exists()


def test_a_limited_cache_stays_near_its_limit(tmp_path: Path) -> None:
    limit = 100_000
    cache = Cache(tmp_path, limit)
    for i in range(300):
        age(cache.put("cpp", content_key(str(i)), b"x" * 1000, ".so"), 2 * GRACE - i)
    total = sum(p.stat().st_size for p in tmp_path.rglob("*.so"))
    assert 0.5 * limit < total <= 1.1 * limit
    assert cache.get_file("cpp", content_key("299"), ".so") is not None
    assert cache.get_file("cpp", content_key("0"), ".so") is None


def test_without_a_limit_everything_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    paths = [cache.put("cpp", content_key(str(i)), b"x" * 9999) for i in range(50)]
    for path in paths:
        age(path, 1e6)
    cache.put("cpp", "aa", b"x")
    assert all(p.exists() for p in paths)


def test_what_killed_processes_left_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 30)
    old, new = cache.scratch(), cache.scratch()
    (old / "half.o").write_bytes(b"x")
    loose = tmp_path / "v1" / "tmp" / "loose"
    loose.write_bytes(b"x")
    for path in (old / "half.o", old, loose):
        age(path, 3 * 24 * 3600)
    cache.put("cpp", "aa", b"x")
    assert not old.exists() and not loose.exists() and new.exists()


def test_processes_evict_at_once(tmp_path: Path) -> None:
    """Each reads back what it has just written, whatever the others remove."""
    program = (
        "import os, sys, time; from litz.runtime.cache import Cache\n"
        "cache = Cache(sys.argv[1], 20_000)\n"
        "for i in range(200):\n"
        "    key = f'{i:02x}{sys.argv[2]}'\n"
        "    path = cache.put('cpp', key, key.encode() * 100)\n"
        "    assert cache.get('cpp', key) == key.encode() * 100\n"
        "    os.utime(path, (1e9 + i, 1e9 + i))\n"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), letter]) for letter in "ab"
    ]
    assert [run.wait() for run in runs] == [0, 0]
    entries = [p for p in (tmp_path / "v1" / "cpp").rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in entries) <= 25_000


def test_folders_are_their_owners_alone(tmp_path: Path) -> None:
    """Those above the last one too, whatever the process gives other folders."""
    before = os.umask(0o002)
    try:
        Cache(tmp_path / "outer" / "root").put("cpp", "ab" * 20, b"x", ".so")
    finally:
        os.umask(before)
    made = [tmp_path / "outer", *(p for p in (tmp_path / "outer").rglob("*") if p.is_dir())]
    assert len(made) >= 4 and all(p.stat().st_mode & 0o077 == 0 for p in made)
