"""What measuring DeepSpeed takes: a world of one rank among many, its traffic, and its compiled optimizers."""
