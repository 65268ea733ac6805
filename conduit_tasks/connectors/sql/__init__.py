"""Tables, through SQLAlchemy."""
