"""Pictures drawn by matplotlib. Imports no pyplot and no widgets."""
