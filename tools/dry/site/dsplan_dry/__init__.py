"""The dry device's part of a Python program: hooks that need nothing of the script (docs/dry-device.md)."""
