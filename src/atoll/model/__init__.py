"""Values that all layers share: frozen, without I/O."""
