"""Everything that is hooked into a script, in the order in which it comes to matter."""
from . import answers, device, imports, mirror, reads, record, values

imports.after("torch", record.note_torch)  # Before others touch what another build of it may lack.
if device.library():
    answers.install()
    mirror.install()
    reads.install()
    values.install()
record.install()
