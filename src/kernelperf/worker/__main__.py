"""``python -m kernelperf.worker READ_FD WRITE_FD``: what the conductor starts."""

import sys

from kernelperf.worker import main

main(sys.argv[1:])
