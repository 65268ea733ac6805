"""Tables of MySQL and MariaDB, and their changes."""
