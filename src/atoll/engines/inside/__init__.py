"""What is inside every sandbox, whatever engine made it: the programs that watch over commands and do file work."""
