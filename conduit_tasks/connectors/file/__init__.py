"""Files: read line by line or row by row, appended to record by record."""
