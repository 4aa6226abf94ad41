"""``python -m amp_migrate.convert``: which files, in which order, and what is said about them."""
