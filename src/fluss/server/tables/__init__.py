"""Tables and their rules: what may be made, formats, lakes, metadata answers, and jobs that look after tables."""
