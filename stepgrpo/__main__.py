"""`python -m stepgrpo`."""

import sys

from stepgrpo.cli import main

sys.exit(main())
