"""The base of all features: errors, formats, meshes, specs, arrays and layouts."""
