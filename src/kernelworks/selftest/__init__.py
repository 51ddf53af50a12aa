"""The attack suite and the honest kernels: executable proof of what a verdict is worth."""
