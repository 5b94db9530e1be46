"""What two files of one kind say that is not the same: of two runs, or of two plans."""
