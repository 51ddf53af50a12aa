"""Attacks and honest kernels under the function contract, in C++."""
