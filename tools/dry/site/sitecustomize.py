"""Python finds this file where the dry device's launcher put its folder on the path; then every script is hooked.
A sitecustomize that stood there before is run as well."""
import importlib.machinery
import os
import sys


def the_one_behind():
    here = os.path.dirname(os.path.abspath(__file__))
    path = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec and spec.loader:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    import importlib.util
    the_one_behind()
finally:
    if os.environ.get("DSPLAN_DRY_RUN"):
        import dsplan_dry.hook  # noqa: F401
