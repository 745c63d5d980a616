"""The ways in: each turns what a guest sent into the same exchanges; from there on nobody knows which way it was."""
