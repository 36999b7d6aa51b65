"""What generated Triton kernels call, and what compiles, launches and interprets them."""
