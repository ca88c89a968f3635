"""Everything that is hooked into a script, in the order in which it comes to matter."""
from . import answers, device, mirror, reads, record, values

if device.library():
    answers.install()
    mirror.install()
    reads.install()
    values.install()
record.install()
