"""A matrix of training jobs on the dry device: what real PyTorch and DeepSpeed take, held against predictions."""
