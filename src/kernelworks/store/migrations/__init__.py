"""Alembic's environment and revisions of a run's database."""
