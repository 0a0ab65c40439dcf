"""Fast paths beside the references they must equal."""
