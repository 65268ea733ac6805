#!/bin/sh
# The stack's first container, at every `up`: Airflow's database, its administrator and pool, and whether Redis keeps
# what it is given. Each step may be done again.
set -eu
airflow db migrate
umask 077
python - <<'PYTHON'
import json, os
from pathlib import Path
file = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
side = file.with_suffix(".new")
side.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))
side.replace(file)
PYTHON
airflow pools set "$CONDUIT_SPARK_POOL" "$CONDUIT_SPARK_SLOTS" "Spark drivers at once"
conduit broker check
