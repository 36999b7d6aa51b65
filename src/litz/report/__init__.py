"""What a compilation made, as one record: gathered, ranked, and shown as text, JSON and a page."""
