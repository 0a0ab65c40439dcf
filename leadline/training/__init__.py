"""Training: optimizers and schedules, the step, the loop, checkpoints and the run folder."""
