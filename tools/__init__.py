"""What `./atoll` does for those who work on Atoll; no part of the package."""
