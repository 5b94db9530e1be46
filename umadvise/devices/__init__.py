"""Devices: what they are, the catalogue's and this machine's, and opening one."""
