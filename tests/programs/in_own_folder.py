# SPDX-License-Identifier: Apache-2.0
"""Runs a script in a folder of this rank's own: in_own_folder.py SCRIPT ARGUMENTS..."""

import os
import runpy
import sys
from pathlib import Path

folder = Path(os.environ["FOLDERS"], os.environ["SMDDP_RANK"])
folder.mkdir(exist_ok=True)
os.chdir(folder)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
