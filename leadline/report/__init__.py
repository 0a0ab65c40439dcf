"""Run folders to pictures and tables. Nothing here needs torch."""
