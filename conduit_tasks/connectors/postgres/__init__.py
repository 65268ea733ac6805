"""PostgreSQL: tables and their changes, by logical replication."""
