"""Atoll beside what people use today: one module per benchmark, one per peer, ratios rather than times."""
