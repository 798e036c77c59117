"""CuTe-DSL functions that emitted files hold a copy of. Importing a module of this package needs the DSL; rendering does not."""
