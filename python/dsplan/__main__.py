"""`python -m dsplan` is the program."""
import os
import sys

from ._program import Error, program

try:
    path = program()
except Error as error:
    sys.exit(f"dsplan: {error}")
os.execv(path, [path, *sys.argv[1:]])
