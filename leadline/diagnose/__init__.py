"""Says whether a Transformer will train, and why not: theory, measurement, verdict."""
