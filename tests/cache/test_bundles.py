"""What PyTorch's bundles of caches bring is looked at; ``test_store`` has one that is whole."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from litz import entry
from litz.cache import portable, store
from litz.runtime import torch_private
from litz.runtime.cache import Cache, content_key


def test_nothing_of_a_bundle_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "there"))
    key = content_key("something")
    good = Cache(tmp_path / "here").put("cpp", key, b"code", ".so").read_bytes()
    graph = Cache(tmp_path / "here").put("graph", key, b"no artifact", ".litz").read_bytes()
    bad = {
        f"../{key[:2]}/{key}.so": good,
        f"/cpp/{key[:2]}/{key}.so": good,
        f"cpp/{key[:2]}/{key[:2]}{'0' * 38}.so": good,  # another's name
        f"cpp/{key[:2]}/{key}": good,
        f"graph/{key[:2]}/{key}.litz": graph,
    }
    name = f"cpp/{key[:2]}/{key}.so"
    with caplog.at_level(logging.WARNING, logger="litz"):
        for other, data in bad.items():
            portable.arrived(other, data)
        portable.arrived(name, good[:-1])
    assert sum("passed over" in r.getMessage() for r in caplog.records) == len(bad) + 1
    assert not list((tmp_path / "there").rglob("*.*"))
    portable.arrived(name, good)
    assert Cache(tmp_path / "there").get("cpp", key, ".so") == b"code"
    assert store.load(Cache(tmp_path / "there"), key) is None


def test_a_pytorch_that_carries_no_other_caches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert torch_private.bundled_entries("litz", portable.arrived) is None  # it is registered
    with caplog.at_level(logging.INFO, logger="litz"):
        entry._bundle_entries()
    assert any("litz cache export" in r.getMessage() for r in caplog.records)
    monkeypatch.delattr(torch.compiler._cache, "CacheArtifact")
    assert torch_private.bundled_entries("litz_other", portable.arrived) is None
