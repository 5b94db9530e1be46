"""What this machine can and cannot do, and for each thing what to do about it: `umadvise doctor`."""
