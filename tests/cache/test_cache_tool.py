"""``litz cache``: a cache goes to another machine as one file, of which nothing is believed."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest
import torch

from litz import compiler
from litz.artifact import Artifact
from litz.cache import store
from litz.runtime.cache import Cache
from litz.tools.commands import main


def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    monkeypatch.setenv("LITZ_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    options = {"cache_dir": str(folder), "check_calls": False}
    x = torch.arange(24.0).view(4, 6)
    out: torch.Tensor = torch.compile(lambda x: x.softmax(-1) * 3, backend="litz", options=options)(
        x
    )
    return out


def test_a_cache_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", str(tmp_path / "all.litz")
    first = call(here, monkeypatch)
    assert main(["cache", "list"]) == main(["cache", "verify"]) == 0
    out = capsys.readouterr().out
    assert "graph " in out and "program " in out and "cpp " in out and " 0 of them" in out
    assert main(["cache", "export", file]) == 0
    monkeypatch.setenv("LITZ_CACHE_DIR", str(there))
    assert main(["cache", "import", file]) == 0
    monkeypatch.setattr(compiler, "compile_graph", None)
    assert torch.equal(call(there, monkeypatch), first)
    assert main(["cache", "clear"]) == 0 and not list(there.glob("v1/*/*/*"))
    assert list(here.glob("v1/*/*/*"))


def test_nothing_of_a_file_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "bad"
    call(here, monkeypatch)
    whole = {p.relative_to(here / "v1").as_posix(): p.read_bytes() for p in here.glob("v1/*/*/*")}
    graph = next(n for n in whole if n.startswith("graph/"))
    program = next(n for n in whole if n.startswith("program/"))
    cache = Cache(tmp_path / "evil")
    sealed = cache.put("graph", graph[9:49], b"no artifact", ".litz").read_bytes()
    members = {
        "../../evil.litz": whole[graph],
        "/etc/evil": whole[graph],
        "graph/aa/" + "a" * 40 + ".litz": whole[graph],  # another's name
        program: whole[program][:-5],
        graph: sealed,
    }
    with tarfile.open(file, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("graph/bb/" + "b" * 40 + ".litz")
        link.type, link.linkname = tarfile.SYMTYPE, str(here)
        archive.addfile(link)
    monkeypatch.setenv("LITZ_CACHE_DIR", str(there))
    assert main(["cache", "import", str(file)]) == 1
    assert capsys.readouterr().out.count("passed over") == 6
    assert not list(there.glob("v1/*/*/*")) and {p.name for p in tmp_path.iterdir()} == {
        *("here", "bad", "evil"),
        *(p.name for p in [there] if p.exists()),
    }
    for data in (b"", b"no archive", file.read_bytes()[:700]):
        file.write_bytes(data)
        assert main(["cache", "import", str(file)]) != 0
    assert main(["cache", "import", str(tmp_path / "none")]) == 2


def test_verify_names_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(tmp_path, monkeypatch)
    (entry,) = tmp_path.glob("v1/graph/*/*")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert main(["cache", "verify"]) == 1
    out = capsys.readouterr().out
    assert f"{entry.name}: it is damaged" in out and " 1 of them" in out


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_truncated_foreign_and_swapped_entries_are_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    call(tmp_path, monkeypatch)
    draw = random.Random(count)
    places = sorted(p for k in store.KINDS for p in tmp_path.glob(f"v1/{k}/*/*"))
    whole = [p.read_bytes() for p in places]
    library = next(tmp_path.glob("v1/cpp/*/*.so"))
    for n in range(count):
        at = n % len(places)
        damaged = bytearray(whole[at])
        match n % 5:
            case 0:
                damaged[draw.randrange(len(damaged))] ^= draw.randrange(1, 256)
            case 1:
                del damaged[draw.randrange(len(damaged)) :]
            case 2:
                start = draw.randrange(len(damaged))
                damaged[start : start + draw.randrange(1, 99)] = draw.randbytes(50)
            case 3:
                damaged = bytearray(library.read_bytes()[: draw.randrange(9999)])
            case _:
                damaged = bytearray(whole[1 - at])
        if bytes(damaged) == whole[at]:
            continue
        places[at].write_bytes(damaged)
        cache = Cache(tmp_path)
        load = store.load if places[at].suffix == ".litz" else store.load_program
        assert load(cache, places[at].stem) is None
        places[at].write_bytes(whole[at])
    for place in places:
        load = store.load if place.suffix == ".litz" else store.load_program
        assert isinstance(load(Cache(tmp_path), place.stem), Artifact | tuple)


def test_folders_that_others_can_write_are_not_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("graph", "a" * 40, b"something")
    (tmp_path / "v1").chmod(0o770)
    assert cache.get("graph", "a" * 40) is None
    with pytest.warns(RuntimeWarning, match="others can write there"):
        cache.put("graph", "b" * 40, b"something")
    assert cache.get("graph", "b" * 40) == b"something"
    assert not list(tmp_path.glob("v1/graph/bb/*"))
    if os.geteuid() == 0:
        other = Cache(tmp_path / "other")
        other.put("graph", "a" * 40, b"something")
        (tmp_path / "v1").chmod(0o700)
        os.chown(tmp_path / "other/v1", 12345, -1)
        assert other.get("graph", "a" * 40) is None
