"""How plans run as programs over blocks: see ``recipe``."""
