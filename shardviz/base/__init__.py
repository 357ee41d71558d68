"""What every feature uses: errors, formats, meshes, specs, arrays and layouts."""
