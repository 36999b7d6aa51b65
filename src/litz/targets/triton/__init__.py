"""Triton kernels from KernelPlans."""
