"""The store: an index of many run folders in one database, SQLite or PostgreSQL, that can be rebuilt from them."""
