"""What commands print: tables, summaries and progress."""
