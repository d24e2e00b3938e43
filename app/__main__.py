"""`python -m app`: the same as `tandem`."""

import sys

from app.cli import main

sys.exit(main())
