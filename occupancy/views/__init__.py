"""Pictures and tables of calls: the terminal's are strings, the caller prints."""
