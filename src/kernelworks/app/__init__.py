"""The use cases: the only thing that faces call."""
