"""Fit the step model to the measured points and write the constants that Rooftree comes with.

python benchmarks/fit_step_model.py src/rooftree/planner/data/constants.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rooftree.planner.calibration.points import read_points
from rooftree.planner.calibration.ship import constants_document
from rooftree.planner.calibration.validate import validate
from rooftree.planner.devices import measured_device


def main() -> None:
    """Read, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    points, unusable = read_points()
    document = constants_document(validate(points, unusable, measured_device))
    parser.parse_args().file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
