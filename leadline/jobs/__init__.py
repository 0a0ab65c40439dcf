"""Many trainings: `engine` runs them here, `cluster` through Ray; `worker` is one of them, `finetune` a grid."""
