"""Models in and out of other libraries' formats."""
