"""Graphs whose middle repeats: compiled with fewer copies of it, then brought to full length."""
