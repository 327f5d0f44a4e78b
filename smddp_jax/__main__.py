# SPDX-License-Identifier: Apache-2.0
"""`python -m smddp_jax`: the console script, where that is not on the path."""

import sys

from smddp_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
