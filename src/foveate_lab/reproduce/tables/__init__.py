"""Tables beside the papers' figures: their cells, their layout and their drawings."""
