"""What PyTorch's caching allocator did on a GPU: whole histories of real runs, and written traces driven through it."""
