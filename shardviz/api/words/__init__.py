"""What the command line says, in English."""
