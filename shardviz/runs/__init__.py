"""Compiles and runs programs, and checks what happened."""
