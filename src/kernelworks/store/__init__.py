"""Runs on disk: the database of a run, its event log, the registry of runs, and the replay that resumes one.

Import from the modules: ``run``, ``registry``, ``replay``, ``records``. This package itself loads nothing, so that
``registry`` can be used without SQLAlchemy.
"""
