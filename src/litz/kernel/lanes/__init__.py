"""How plans run as loops over vectors, in threads: see ``recipe``."""
