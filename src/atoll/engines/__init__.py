"""Ways of isolating code, behind one contract."""
