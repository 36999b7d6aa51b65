"""What a fixed corpus of graphs compiles to, at two revisions; see ``__main__``."""
