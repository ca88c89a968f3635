"""Real PyTorch and DeepSpeed on the dry device: what docs/dry-device.md says of the receipts under tests/receipts/dry,
which a test of its own holds to them, beside the other kinds of proof."""

import re

from . import tables

PAGE = "docs/dry-device.md"
ROW = re.compile(r"^\| (\S+) \| ([\d,]+) \| ([\d,]+ of [\d,]+) \| ([\d,]+) of ([\d,]+) \| ([\d,]+) of ([\d,]+) \| "
                 r"([\d,]+) of ([\d,]+) \|$", re.MULTILINE)


KNOWN = re.compile(r"^What parts in requested or allocated bytes, by name:\n\n(.*?)\n\nReserved bytes with ", re.MULTILINE | re.DOTALL)


def known_differences(page):
    """The causes that docs/dry-device.md names, and the jobs that are not predicted, as they stand there."""
    found = KNOWN.search(page)
    if found is None:
        raise SystemExit(f"{PAGE}: no table of what parts in requested or allocated bytes")
    return ("\nWhat parts in requested or allocated bytes, each by name. Rows whose reserved bytes alone part are counted above\n"
            "and not named.\n\n"
            + found.group(1) + "\n")


def number(text):
    return int(text.replace(",", ""))


def share(equal, of):
    return f"{100 * number(equal) / number(of):.2f} %" if number(of) else ""


def section(root):
    page = (root / PAGE).read_text(encoding="utf-8")
    rows = []
    for name, jobs, outcome, *counts in ROW.findall(page):
        shares = [share(*counts[at:at + 2]) for at in (0, 2, 4)]
        rows.append((name, jobs, outcome, counts[1], *shares))
    return ("## The dry device\n\nThe frameworks' own code and allocator in front of libraries that stand in for CUDA's "
            f"([dry-device.md](dry-device.md)):\nevery phase of every job under tests/receipts/dry, and how many are "
            "equal to the byte. FakeTensor (above) sees requested\nbytes of operators alone; of hardware there are "
            "published figures (below) and no receipt.\n\n"
            + tables.table(("stratum", ">jobs", ">outcome", ">rows", ">requested", ">allocated", ">reserved"), rows)
            + known_differences(page))
