"""Types of every level between PyTorch and the emitted source, with their printers and interpreters."""
