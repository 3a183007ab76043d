"""A fake engine, and the checks that every engine has to pass; public."""
