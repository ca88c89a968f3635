"""What the stand-in libraries of this process say of themselves."""
import ctypes
import json
import os


def library():
    """The libraries that stand in, or None where a real GPU is used."""
    try:
        found = ctypes.CDLL(None)
        found.dsplan_dry_ledger.restype = ctypes.c_char_p
        return found
    except (OSError, AttributeError):
        return None


def ledger():
    found = library()
    return json.loads(found.dsplan_dry_ledger()) if found else {}


def setting(name, otherwise=None):
    return os.environ.get("DSPLAN_DRY_" + name) or otherwise
