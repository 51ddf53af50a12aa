"""Targets: what builds kernels of one language for one device."""
