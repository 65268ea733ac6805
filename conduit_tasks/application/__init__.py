"""Path of the program that a node's task starts; it is alone in its folder, which Python puts in front of its path."""

from pathlib import Path

APPLICATION = Path(__file__).with_name("app.py")
