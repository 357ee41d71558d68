"""Pictures in ink, through matplotlib. Imports no pyplot and no widgets."""
