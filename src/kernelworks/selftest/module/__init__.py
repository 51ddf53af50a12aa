"""Attacks and honest submissions under the module contract, in Python around C++."""
