"""Real PyTorch and DeepSpeed on the dry device, beside the other kinds of proof: tools/dry/compare --page writes what it
saw between two marks of the page, a test of its own holds that to the receipts, and it is kept here as it stands."""

PAGE = "docs/accuracy.md"
BEGINS, ENDS = "<!-- written by tools/dry/compare --page -->", "<!-- until here -->"


def written(root):
    """What stands between the two marks."""
    page = (root / PAGE).read_text(encoding="utf-8")
    if BEGINS not in page or ENDS not in page:
        raise SystemExit(f"{PAGE}: no marks around what tools/dry/compare --page writes")
    return page[page.index(BEGINS): page.index(ENDS) + len(ENDS)]


def section(root):
    return ("## The dry device\n\nThe frameworks' own code and allocator in front of libraries that stand in for CUDA's "
            "([dry-device.md](dry-device.md)):\nevery phase of every job under tests/receipts/dry, and how many are "
            "equal to the byte. FakeTensor (above) sees requested\nbytes of operators alone; of hardware there are "
            f"published figures (below) and no receipt.\n\n{written(root)}\n")
