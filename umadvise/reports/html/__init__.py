"""The report as one HTML file, which opens anywhere and asks nobody for anything."""
