"""``python -m litz``: the command ``litz``."""

import sys

from litz.tools.commands import main

sys.exit(main())
