"""Files of calls, in and out: one module for each format. Readers give a `Recording`."""
