"""Fake tensors and objects: PyTorch's values without numbers."""

from __future__ import annotations

from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

__all__ = ["FakeScriptObject", "FakeTensor", "FakeTensorMode", "unset_fake_temporarily"]
