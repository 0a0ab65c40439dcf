"""Speed against peers."""
