"""What all tools that measure frameworks share: receipts, devices, phases and the environment."""
