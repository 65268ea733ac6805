"""MySQL and MariaDB."""

from conduit_tasks.connectors.mysql.destination import MysqlDestination

DESTINATION = MysqlDestination
