# SPDX-License-Identifier: MIT
"""python -m onehop: the onehop command."""
from onehop import main

main()
