"""What a finished run shows: tables, figures, the HTML report."""
