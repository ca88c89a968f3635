"""The operators of the catalogue, one at a time, on a GPU: what its allocator was asked for."""
