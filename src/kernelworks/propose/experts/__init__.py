"""Experts: recognise the traced reference and write C++ kernels for it from templates; no model, no key.

The way of a kernel: ``recognise`` (ATen -> ``ir.Program``), ``recipe`` (what can be chosen), ``plan`` (order of work),
``emit`` and ``generate`` (text). ``moves`` changes recipes; ``proposer`` is the face to the search.
"""

from kernelworks.propose.experts.proposer import ExpertProposer

__all__ = ["ExpertProposer"]
