"""KernelSpec → source text → object: rendering prints what passes decided, building runs the kernel compiler."""
