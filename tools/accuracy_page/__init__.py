"""The parts of docs/accuracy.md (see tools/accuracy)."""
