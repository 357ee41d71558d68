"""The foundation of all features: errors, formats, meshes, specs, arrays and layouts."""
