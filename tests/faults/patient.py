"""An application that waits for its executors, if it is asked to end, as long as a loaded machine lets them take."""

import runpy

from conduit_tasks.application import APPLICATION
from conduit_tasks.spark import ended

ended.HALT = 90.0
runpy.run_path(str(APPLICATION), run_name="__main__")
