"""Snapshots of real runs with their whole history, and dsplan's allocator traces on the real allocator: see run.py."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from snapshots.run import main  # noqa: E402

sys.exit(main())
