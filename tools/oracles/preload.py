"""Before torch is imported: a CUDA build without a driver needs no_accelerator.c in front of it."""
import os
import subprocess
import sys
import tempfile


def preload():
    """Runs the script again behind no_accelerator.c (see there)."""
    if "no_accelerator" in os.environ.get("LD_PRELOAD", ""):
        return
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "no_accelerator.c")
    library = os.path.join(tempfile.mkdtemp(), "no_accelerator.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    os.environ["LD_PRELOAD"] = library
    os.execv(sys.executable, [sys.executable] + sys.argv)
