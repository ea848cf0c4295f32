"""Pure analysis: columns of calls in, values out. No clock, no file, no thread."""
