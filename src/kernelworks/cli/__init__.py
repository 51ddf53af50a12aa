"""The command line: a thin face over ``app``."""
