"""See the module files of this package."""
