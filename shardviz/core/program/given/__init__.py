"""What a person gives to a program: arguments, specs, functions that are jitted already."""
