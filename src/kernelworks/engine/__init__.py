"""Where builds and evaluations run."""
