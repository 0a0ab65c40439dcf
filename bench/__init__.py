"""Speed against peers: the same sentences, weights of the same sizes, one process, warmed up, median of repeats."""
