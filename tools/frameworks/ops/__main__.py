"""What every operator of the catalogue, and every optimizer step, allocates and frees on a GPU: see run.py."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ops.run import main  # noqa: E402

sys.exit(main())
