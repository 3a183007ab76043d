"""Container images as trees of files: where they come from, what is checked, and what a sandbox sees of them."""
