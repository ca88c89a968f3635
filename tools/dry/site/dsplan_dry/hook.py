"""Everything that is hooked into a script, in the order in which it comes to matter."""
from . import answers, device, mirror, reads, record

if device.library():
    answers.install()
    mirror.install()
    reads.install()
record.install()
