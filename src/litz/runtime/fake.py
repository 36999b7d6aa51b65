"""PyTorch's fake tensors, which have metadata and no numbers, under names that are private."""

from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

__all__ = ["FakeTensor", "unset_fake_temporarily"]
