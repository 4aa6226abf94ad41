"""``apex.contrib``: everything in it is imported by its full name, as in Apex."""
