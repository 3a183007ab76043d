"""Everything one machine does with sandboxes."""
